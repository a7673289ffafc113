"""Parsers of the forms in which models write calls, one for each text.

The same text gives the same content and calls, wherever it is cut into pieces.
"""

import re
from collections.abc import Collection
from typing import Final

from app.protocol.openai.tools.envelope import Envelope
from app.protocol.openai.tools.events import Arguments, Call, Content, Event, merged
from app.protocol.openai.tools.reading import Reading, TooLong, Wait

DEFAULT_MAX_BYTES: Final = 128 << 10
"""Triton's."""
_NAME_END: Final = re.compile(r"[\[{\s]")


class Parser:
    """Finds calls in a text.

    Args:
        names: of functions that may be called: a text that names another is no call.
        limit: bytes of all calls of the text.
        single: only the first call counts.

    Attributes:
        calls: the number of calls so far.
        too_long: the calls exceed the limit: the rest of the text is not wanted.
    """

    def __init__(
        self, names: Collection[str], limit: int = DEFAULT_MAX_BYTES, *, single: bool = False
    ) -> None:
        self.calls = 0
        self.too_long = False
        self._names = frozenset(names)
        self._single = single
        self._reading = Reading(limit)
        self._events: list[Event] = []
        self._steps = self._run()

    def feed(self, piece: str) -> list[Event]:
        """Return what the next piece of the text makes known."""
        self._reading.feed(piece)
        return self._step()

    def end(self) -> list[Event]:
        """Return what the end of the text makes known."""
        self._reading.ended = True
        return self._step()

    def _step(self) -> list[Event]:
        next(self._steps, None)
        found, self._events = list(merged(self._events)), []
        return found

    def _run(self) -> Wait[None]:
        try:
            yield from self._read()
            self._give_up()
            while (yield from self._reading.peek()):
                self._content(self._reading.rest())
        except TooLong:
            self.too_long = True
            if not self.calls:
                self._give_up()

    def _read(self) -> Wait[None]:
        """Read the text as far as there may be calls in it."""
        raise NotImplementedError

    def _call(self) -> Wait[bool]:
        """Read an object of a call; make content of it, and of what was held before, if it was none."""
        envelope = Envelope(self._reading, self._names, self._begin, self._arguments)
        found = yield from envelope.read()
        if found:
            self._reading.release()
        else:
            self._give_up()
        return found

    def _begin(self, name: str) -> None:
        self.calls += 1
        if not self._dropped():
            self._events.append(Call(self.calls - 1, name))

    def _arguments(self, piece: str) -> None:
        if not self._dropped():
            self._events.append(Arguments(self.calls - 1, piece))

    def _dropped(self) -> bool:
        return self._single and self.calls > 1

    def _content(self, piece: str) -> None:
        self._events.append(Content(piece))

    def _ends(self) -> Wait[bool]:
        """Hold white space; return whether the text ends behind a call, of which it is no content then."""
        self._reading.hold()
        yield from self._reading.spaces()
        ended = self.calls > 0 and not (yield from self._reading.peek())
        if ended:
            self._reading.release()
        return ended

    def _give_up(self) -> None:
        """Make content of what was held for a call."""
        self._content(self._reading.release())


class Required(Parser):
    """A text that is the object of one call, because a schema has forced it to be."""

    def _read(self) -> Wait[None]:
        self._reading.hold()
        yield from self._reading.spaces()
        if (yield from self._call()):
            self._reading.hold()
            yield from self._reading.spaces()
            self._reading.release()


class Named(Parser):
    """A text that is the arguments of one function, because a schema has forced it to be."""

    def _read(self) -> Wait[None]:
        self._begin(next(iter(self._names)))
        self._reading.hold()
        while (yield from self._reading.peek()):
            self._reading.pass_on(self._arguments)
        self._reading.release()


class Llama3(Parser):
    """Llama 3: the text begins with `<|python_tag|>` or an object; `;` stands between calls."""

    def _read(self) -> Wait[None]:
        reading = self._reading
        reading.hold()
        yield from reading.spaces()
        yield from reading.accept("<|python_tag|>")
        yield from reading.spaces()
        while (yield from self._call()):
            reading.hold()
            yield from reading.spaces()
            if not (yield from reading.peek()):
                reading.release()
                return
            yield from reading.accept(";")
            yield from reading.spaces()


class Hermes(Parser):
    """Hermes, Qwen: objects between `<tool_call>` and `</tool_call>`, anywhere in the text."""

    def _read(self) -> Wait[None]:
        reading = self._reading
        while not (yield from self._ends()):
            if not (yield from reading.accept("<tool_call>")):
                self._give_up()
                if not (yield from reading.until("<tool_call>", self._content)):
                    return
                continue
            yield from reading.spaces()
            if (yield from self._call()):
                reading.hold()
                yield from reading.spaces()
                if (yield from reading.accept("</tool_call>")):
                    reading.release()
                else:
                    self._give_up()


class Mistral(Parser):
    """Mistral: `[TOOL_CALLS]` and a list of objects, or names, each followed by an object of arguments.

    A marker that is a special token may be left out by a backend: then the text begins with the list.
    """

    def _read(self) -> Wait[None]:
        reading = self._reading
        first = True
        while not (yield from self._ends()):
            marked = yield from reading.accept("[TOOL_CALLS]")
            yield from reading.spaces()
            listed = (yield from reading.peek()) == "["
            if listed and (marked or first):
                yield from self._list()
            elif marked:
                yield from self._named()
            else:
                self._give_up()
                if not (yield from reading.until("[TOOL_CALLS]", self._content)):
                    return
            first = False

    def _list(self) -> Wait[None]:
        reading = self._reading
        more = yield from reading.accept("[")
        while more:
            yield from reading.spaces()
            if not (yield from self._call()):
                return
            reading.hold()
            yield from reading.spaces()
            more = yield from reading.accept(",")
        if (yield from reading.accept("]")):
            reading.release()
        else:
            self._give_up()

    def _named(self) -> Wait[None]:
        reading = self._reading
        name = yield from reading.until_any(_NAME_END)
        if (yield from reading.accept("[CALL_ID]")):
            yield from reading.until_any(_NAME_END)
        yield from reading.accept("[ARGS]")
        yield from reading.spaces()
        if name in self._names and (yield from reading.peek()) == "{":
            self._begin(name)
            yield from reading.value(self._arguments)
            reading.release()
        else:
            self._give_up()


PARSERS: Final[dict[str, type[Parser]]] = {"llama3": Llama3, "mistral": Mistral, "hermes": Hermes}
"""By their names in settings."""
