"""The JSON object of a call: `{"name": ..., "arguments": {...}}`, with its fields in any order."""

from collections.abc import Callable, Collection
from typing import Final

from app.protocol.openai.tools.reading import Reading, Wait

_ARGUMENTS: Final = ("arguments", "parameters")
_OTHERS: Final = ("id", "type")
"""Fields that models write too; texts."""
NONE: Final = "{}"
"""The arguments of a call that has none."""


class Envelope:
    """Reads one call.

    Args:
        names: of functions that may be called.
        begin: is told the name, as soon as it is sure that this is a call.
        emit: gets the arguments, piece by piece.
    """

    def __init__(
        self,
        reading: Reading,
        names: Collection[str],
        begin: Callable[[str], None],
        emit: Callable[[str], None],
    ) -> None:
        self._reading = reading
        self._names = names
        self._begin = begin
        self._emit = emit
        self._name = ""
        self._early: list[str] = []
        self._complete = False
        self._begun = False

    def read(self) -> Wait[bool]:
        """Read the object; return whether it was a call, also one that does not end.

        What was taken of no call is held by the reading.
        """
        reading = self._reading
        if not (yield from reading.accept("{")):
            return False
        while True:
            yield from reading.spaces()
            if not (yield from self._field()):
                return self._begun
            yield from reading.spaces()
            if (yield from reading.accept("}")):
                return self._finish()
            if not (yield from reading.accept(",")):
                return self._begun

    def _field(self) -> Wait[bool]:
        reading = self._reading
        key = yield from reading.string()
        yield from reading.spaces()
        if key is None or not (yield from reading.accept(":")):
            return False
        yield from reading.spaces()
        if key == "name" and not self._name:
            return (yield from self._read_name())
        if key in _ARGUMENTS and not self._complete:
            return (yield from self._read_arguments())
        return key in _OTHERS and (yield from reading.string()) is not None

    def _read_name(self) -> Wait[bool]:
        name = yield from self._reading.string()
        if name not in self._names:
            return False
        self._name = name or ""
        if self._complete:
            self._start()
        return True

    def _read_arguments(self) -> Wait[bool]:
        reading = self._reading
        first = yield from reading.peek()
        if first == "{":
            if self._name:
                self._start()
            self._complete = yield from reading.value(self._emit if self._name else self._early.append)
            return self._complete
        if first == '"':  # an object within a text
            text = yield from reading.string()
        else:
            text = NONE if (yield from reading.accept("null")) else None
        if text is None:
            return False
        self._early, self._complete = [text], True
        if self._name:
            self._start()
        return True

    def _start(self) -> None:
        self._begun = True
        self._begin(self._name)
        for piece in self._early:
            self._emit(piece)

    def _finish(self) -> bool:
        if not self._begun and self._name:
            self._early = [NONE]
            self._start()
        return self._begun
