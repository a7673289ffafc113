"""The text of a generation, in pieces that can be sent as soon as they are certain.

Imports no framework.
"""

from collections.abc import Callable, Sequence
from typing import Final

_INCOMPLETE: Final = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers decode the first bytes of a character to."""


class TextDeltas:
    """Turns tokens into pieces of text, none of which ends inside of a character or of a stop text.

    Attributes:
        stopped: whether a stop text was found; nothing follows it.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        include_stop: bool = False,
        at_once: bool = False,
    ) -> None:
        """Use a tokenizer's decoding.

        Args:
            decode: from tokens to text.
            stop: texts that end the generation.
            include_stop: leaves the stop text in the result.
            at_once: all text is wanted at the end; it is decoded then, if no stop text is to be found before.
        """
        self.stopped = False
        self._at_the_end = at_once and not stop
        self._decode = decode
        self._stop = stop
        self._include_stop = include_stop
        # Some tokenizers drop the space in front of the first token, so the tokens of the piece before are
        # decoded again with each: those from `_context` on, of which `_decoded` characters are known.
        self._tokens: list[int] = []
        self._context = self._begin = self._decoded = 0
        self._held = ""

    def push(self, token: int, stops: bool = True) -> str:
        """Add a token; return the text that is certain now, maybe none.

        Args:
            token: the next one.
            stops: whether a stop text may end the text with this token.
        """
        self._tokens.append(token)
        if self._at_the_end:
            return ""
        text = self._decode(self._tokens[self._context :])
        certain = text.rstrip(_INCOMPLETE)
        added = certain[self._decoded :]
        self._held += added
        self._decoded += len(added)
        if added and certain == text:
            self._context, self._begin = self._begin, len(self._tokens)
            self._decoded = len(self._decode(self._tokens[self._context : self._begin]))
        if not stops:
            text, self._held = self._held, ""
            return text
        return self._certain()

    def finish(self) -> str:
        """Return what was held back, at the end of the tokens."""
        if self.stopped:
            return ""
        text = self._decode(self._tokens[self._context :])
        self._held += text[self._decoded :]
        self._decoded = len(text)
        before = self._certain()
        rest, self._held = self._held, ""
        return before if self.stopped else before + rest

    def _certain(self) -> str:
        """Take what no stop text can begin in out of the held text."""
        if self.stopped:
            return ""
        found = [(at, len(stop)) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, length = min(found)
            self.stopped = True
            return self._held[: at + length * self._include_stop]
        end = len(self._held) - self._possible_stop()
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _possible_stop(self) -> int:
        """Return the length of the longest end of the held text that a stop text begins with."""
        return max(
            (size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size])),
            default=0,
        )
