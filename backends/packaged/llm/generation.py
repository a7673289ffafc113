"""One text that is being generated."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch

from backends.packaged.llm.choice import Choice, Logprob, logprobs
from backends.packaged.llm.sampling import SamplingParameters
from backends.packaged.llm.text_deltas import TextDeltas


class Piece(NamedTuple):
    """What one token adds.

    Attributes:
        text: may be empty.
        finish_reason: "stop" or "length" for the last one, else None.
        logprob: the token's, 0 unless asked for.
        logprobs: those of the token and of the most probable ones; None unless asked for.
    """

    text: str
    finish_reason: str | None
    logprob: float
    logprobs: dict[int, Logprob] | None


class Listener(Protocol):
    """Receives the pieces of a text, on the thread of the engine."""

    def generated(self, piece: Piece) -> None:
        """Receive the next piece; the last one has a `finish_reason`."""

    def failed(self, message: str) -> None:
        """Receive the reason why no piece follows."""

    def cancelled(self) -> None:
        """Learn that the generation has ended because `is_cancelled`."""

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the text any more."""


class Generation:
    """The state of one text.

    Attributes:
        prompt: its tokens.
        last: the token generated last.
        done: whether nothing is generated any more.
        next_look: when `listener.is_cancelled` is asked next, `time.monotonic`.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        limit: int,
        ends: Collection[int],
        decode: Callable[[Sequence[int]], str],
        listener: Listener,
        device: torch.device,
        scored: bool = False,
        streamed: bool = True,
    ) -> None:
        """Continue a prompt.

        Args:
            prompt: its tokens, at least one.
            parameters: how.
            limit: the most tokens that prompt and text together may have.
            ends: the tokens by which the model ends a text.
            decode: from tokens to text.
            listener: receives the text.
            device: of the logits.
            scored: whether `Piece.logprob` is wanted.
            streamed: whether each piece is to have its text; else the last one may have all.
        """
        self.prompt = prompt
        self.listener = listener
        self.choice = Choice(parameters, prompt, device)
        self.last = -1
        self.done = False
        self.next_look = 0.0
        self._parameters = parameters
        self._left = min(parameters.max_tokens, limit - len(prompt))
        self._ends = {*parameters.stop_token_ids, *(() if parameters.ignore_eos else ends)}
        self._decode = decode
        self._scored = scored or parameters.logprobs is not None
        include_stop = parameters.include_stop_str_in_output
        self._deltas = TextDeltas(decode, parameters.stop, include_stop, at_once=not streamed)

    def advance(self, token: int, logits: torch.Tensor) -> Piece:
        """Add a token that was chosen by these logits."""
        self.last = token
        self._left -= 1
        logprob, found = 0.0, None
        if self._scored:
            logprob, found = logprobs(logits, token, self._parameters.logprobs or 0, self._decode)
        ended = token in self._ends
        text = "" if ended else self._deltas.push(token)
        reason = "stop" if ended or self._deltas.stopped else "length" if self._left <= 0 else None
        if reason:
            text += self._deltas.finish()
        if self._deltas.stopped:  # maybe by what was held back
            reason = "stop"
        self.done = reason is not None
        return Piece(text, reason, logprob, None if self._parameters.logprobs is None else found)
