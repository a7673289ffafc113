"""Reading a text that comes in pieces: what asks for more than there is waits for the next piece.

Readers are generators that yield where they wait. Each character is looked at once, wherever the text is cut.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

_T = TypeVar("_T")
Wait = Generator[None, None, _T]
"""A reader that returns a T."""

_SPACES: Final = re.compile(r"[ \t\r\n]*")
_OUTSIDE: Final = re.compile(r'[\[\]{}"]')
_INSIDE: Final = re.compile(r'["\\]')
_STEPS: Final = {"{": 1, "[": 1, "}": -1, "]": -1, '"': 0}


class TooLong(Exception):
    """A call has more bytes than the limit; `within` is what is within it of the last piece."""

    def __init__(self, within: str) -> None:
        super().__init__(within)
        self.within = within


class Reading:
    """The text so far, and what readers have taken of it.

    Attributes:
        held: what was taken since `hold`, for a call that turns out to be none.
        ended: no further piece comes.
    """

    def __init__(self, limit: int) -> None:
        self.held: list[str] = []
        self.ended = False
        self._text = ""
        self._at = 0
        self._left = limit
        self._counts = False

    def feed(self, piece: str) -> None:
        """Append a piece."""
        self._text = self._text[self._at :] + piece
        self._at = 0

    def hold(self) -> None:
        """Begin to keep, and to count, what is taken."""
        self.held = []
        self._counts = True

    def release(self) -> str:
        """Return what was kept, and count no further."""
        held = "".join(self.held)
        self.held = []
        self._counts = False
        return held

    def pass_on(self, emit: Callable[[str], None]) -> None:
        """Take and emit all that is there."""
        self._emit(len(self._text) - self._at, emit)

    def rest(self) -> str:
        """Take all that is there."""
        return self._take(len(self._text) - self._at)

    def peek(self) -> Wait[str]:
        """Return the next character; "" at the end of the text."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def spaces(self) -> Wait[None]:
        """Take white space."""
        while (yield from self.peek()) in (" ", "\t", "\r", "\n"):
            self._take_to(_SPACES)

    def accept(self, literal: str) -> Wait[bool]:
        """Take a literal if the text goes on with it; otherwise take nothing."""
        while True:
            there = self._text[self._at : self._at + len(literal)]
            if there == literal:
                self._take(len(literal))
                return True
            if self.ended or not literal.startswith(there):
                return False
            yield

    def until(self, marker: str, emit: Callable[[str], None]) -> Wait[bool]:
        """Emit the text in front of a marker, which is not taken; return whether it is there."""
        while True:
            found = self._text.find(marker, self._at)
            if found >= 0:
                emit(self._take(found - self._at))
                return True
            if self.ended:
                emit(self.rest())
                return False
            emit(self._take(len(self._text) - self._at - self._begun(marker)))
            yield

    def _begun(self, marker: str) -> int:
        """Return how many characters at the end may begin a marker."""
        most = min(len(marker) - 1, len(self._text) - self._at)
        return next((size for size in range(most, 0, -1) if self._text.endswith(marker[:size])), 0)

    def until_any(self, characters: re.Pattern[str]) -> Wait[str]:
        """Take the text in front of the next of some characters, or of the end."""
        taken = []
        while (yield from self.peek()) and not characters.match(self._text, self._at):
            found = characters.search(self._text, self._at)
            taken.append(self._take((found.start() if found else len(self._text)) - self._at))
        return "".join(taken)

    def string(self) -> Wait[str | None]:
        """Take a JSON string; None if there is none, or it does not end."""
        pieces: list[str] = []
        if (yield from self.peek()) != '"' or not (yield from self.value(pieces.append)):
            return None
        try:
            found = json.loads("".join(pieces), strict=False)
        except ValueError:
            return None
        return found if isinstance(found, str) else None

    def value(self, emit: Callable[[str], None]) -> Wait[bool]:
        """Take an object, array or string as it is written; return whether it ends.

        Args:
            emit: gets it piece by piece.
        """
        depth, inside, escaped = 0, False, False
        while (yield from self.peek()):
            at, escaped = self._at + escaped, False
            while (found := (_INSIDE if inside else _OUTSIDE).search(self._text, at)) is not None:
                at = found.end()
                if found[0] == "\\":
                    escaped = at == len(self._text)  # of which the rest is in the next piece
                    at += 1
                    continue
                inside ^= found[0] == '"'
                depth += _STEPS[found[0]]
                if depth == 0 and not inside:
                    self._emit(at - self._at, emit)
                    return True
            self._emit(len(self._text) - self._at, emit)
        return False

    def _emit(self, count: int, emit: Callable[[str], None]) -> None:
        try:
            emit(self._take(count))
        except TooLong as over:
            emit(over.within)
            raise

    def _take_to(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._take(found.end() - self._at)

    def _take(self, count: int) -> str:
        piece = self._text[self._at : self._at + count]
        if self._counts:
            self._count(piece)
        self._at += count
        return piece

    def _count(self, piece: str) -> None:
        size = len(piece.encode())
        if size > self._left:
            piece = piece.encode()[: self._left].decode(errors="ignore")
        self.held.append(piece)
        if size > self._left:
            raise TooLong(piece)
        self._left -= size
