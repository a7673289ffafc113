"""The choices of an answer while their texts come. No I/O."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Final

from app.protocol.openai.texts.tensors import Piece

_Utf8: Final = getincrementaldecoder("utf-8")
_REASONS: Final = ("stop", "length", "tool_calls", "content_filter")


class StopTexts:
    """Ends a text by the first of some texts, which it does not have itself, wherever its pieces are cut.

    Args:
        stops: not empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._longest = max(map(len, stops))
        self.stopped = False

    def push(self, piece: str) -> str:
        """Return what certainly belongs to the text."""
        text = self._held + piece
        # The stop that is complete first counts, of several the longest: wherever the pieces are cut.
        places = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)[1]]
        kept = self._beginning(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """Return what was held back, as nothing follows."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a stop."""
        for count in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0


class Choice:
    """One text.

    Args:
        limit: the tokens that it may have; None for any number.
        stops: texts by which it is ended here; empty where the model does so.

    Attributes:
        input_tokens, cached_tokens: of its prompt; 0 and None until the model says them.
        output_tokens: its own, as far as the model says them.
        reason: why it ended; "" before that.
        cut: whether it ended here, while the model goes on.
        length: characters of its text.
    """

    def __init__(self, limit: int | None, stops: Sequence[str]) -> None:
        self.input_tokens = self.output_tokens = 0
        self.cached_tokens: int | None = None
        self.reason = ""
        self.cut = False
        self.length = 0
        self._limit = limit
        self._stops = StopTexts(stops) if stops else None
        self._decoder = _Utf8("replace")
        self._said = ""

    def end(self, reason: str, final: bool) -> None:
        """End it here; `final` says whether the model has ended too."""
        self.reason, self.cut = reason, not final

    def push(self, piece: Piece, final: bool) -> str:
        """Return the text that a response adds; with the final one the choice ends."""
        text = self._pushed(piece, final)
        self.length += len(text)
        return text

    def _pushed(self, piece: Piece, final: bool) -> str:
        if piece.input_tokens is not None:
            self.input_tokens = piece.input_tokens
        if piece.cached_tokens is not None:
            self.cached_tokens = piece.cached_tokens
        self.output_tokens += piece.output_tokens or 0
        self._said = piece.reason or self._said
        text = self._decoder.decode(piece.text, final)
        if self._stops is not None:
            text = self._stops.push(text)
            if self._stops.stopped:
                self.end("stop", final)
                return text
            text += self._stops.finish() if final else ""
        if final:
            self.reason = self._honest()
        return text

    def _honest(self) -> str:
        """Return why the text ended: what the model says, or else whether it has all its tokens."""
        if self._said in _REASONS:
            return self._said
        return "length" if self._limit is not None and self.output_tokens >= self._limit else "stop"
