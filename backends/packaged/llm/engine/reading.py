"""A prompt that a model reads, and the hidden state of its last token for those who want no text."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch.nn.functional import normalize


class Reader(Protocol):
    """Learns what becomes of a prompt, on the thread of the engine."""

    def failed(self, message: str) -> None:
        """Receive the reason why nothing follows."""

    def invalid(self, message: str) -> None:
        """Receive the reason, which is the client's."""

    def cancelled(self) -> None:
        """Learn that nothing follows because `is_cancelled`."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits any more."""


class Reading:
    """The state of a prompt.

    Attributes:
        prompt: its tokens.
        unread: those that the model has not read.
        tokens: those of the prompt and of what follows it.
        adapter: that it is read with, "" for none.
        owner: whose beginnings of prompts this one may share.
        cached: how many tokens of the prompt were shared.
        row: what the model has read, in its batch.
        done: whether nothing follows any more.
        next_look: when `reader.is_cancelled` is asked next, `time.monotonic`.
    """

    def __init__(
        self, prompt: Sequence[int], reader: Reader, adapter: str = "", salts: Sequence[str] = ()
    ) -> None:
        """Read a prompt of at least one token; only those of the same adapter and salts share beginnings."""
        self.prompt = self.unread = prompt
        self.tokens = [*prompt]
        self.reader = reader
        self.adapter = adapter
        self.owner = "\0".join((adapter, *salts))
        self.row: Any = None
        self.cached, self.done, self.next_look = 0, False, 0.0


class VectorReader(Reader, Protocol):
    """Receives the vector of a prompt."""

    def embedded(self, vector: list[float]) -> None:
        """Receive the vector; nothing follows it."""


class Embedding(Reading):
    """A prompt of which a vector is wanted: the last token's hidden state, of length 1."""

    def __init__(
        self,
        prompt: Sequence[int],
        reader: VectorReader,
        dimensions: int | None = None,
        salts: Sequence[str] = (),
    ) -> None:
        """Keep the first `dimensions` numbers of the vector, None for all."""
        super().__init__(prompt, reader, salts=salts)
        self._reader = reader
        self._dimensions = dimensions

    def finish(self) -> None:
        """Tell the vector, once the prompt is read."""
        self.done = True
        hidden = getattr(self.row, "hidden", None)
        if hidden is None:
            raise ValueError("the model gives no vectors")
        vector: list[float] = normalize(hidden.float()[: self._dimensions], dim=0).tolist()
        self._reader.embedded(vector)
