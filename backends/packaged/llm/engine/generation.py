"""One text that is being generated."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import torch

from backends.packaged.llm.engine.choice import Choice, Guide, Logprob, Score
from backends.packaged.llm.engine.reading import Reader, Reading
from backends.packaged.llm.engine.sampling import SamplingParameters
from backends.packaged.llm.engine.text_deltas import TextDeltas


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


class Listener(Reader, Protocol):
    """Receives the pieces of a text, on the thread of the engine."""

    def generated(self, piece: Piece) -> None:
        """Receive the next piece; the last one has a `finish_reason`."""


class ModelFacts(NamedTuple):
    """What is known of a model.

    Attributes:
        limit: the most tokens that a prompt and its text may have together.
        ends: the tokens by which the model ends a text.
        vocabulary: the number of tokens.
        device: of the logits.
        decode: from tokens to text, in which special ones have none.
        spell: from tokens to text with that of special ones, as scores tell them.
    """

    limit: int
    ends: Collection[int]
    vocabulary: int
    device: torch.device
    decode: Callable[[Sequence[int]], str]
    spell: Callable[[Sequence[int]], str]


class Generation(Reading):
    """The state of one text.

    Attributes:
        last: the token generated last.
        spell: see `ModelFacts`.
        listener: receives the pieces.
        scored: how many of the most probable tokens are reported beside each; None where no score is wanted.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        facts: ModelFacts,
        listener: Listener,
        scored: bool = False,
        streamed: bool = True,
        guide: Guide | None = None,
        salt: str = "",
    ) -> None:
        """Continue a prompt.

        Args:
            prompt: its tokens, at least one.
            parameters: how.
            facts: of the model.
            listener: receives the text.
            scored: whether `Piece.logprob` is wanted.
            streamed: whether each piece is to have its text; else the last one may have all.
            guide: allows tokens; None for all.
            salt: of the client; texts of the same salts share beginnings.
        """
        super().__init__(prompt, listener, parameters.lora_name, (salt, parameters.cache_salt))
        self.listener, self.spell = listener, facts.spell
        self._ends = {*parameters.stop_token_ids, *(() if parameters.ignore_eos else facts.ends)}
        self.choice = Choice(parameters, prompt, facts.device, self._ends, guide)
        self.scored = parameters.logprobs if parameters.logprobs is not None else 0 if scored else None
        self.last = -1
        self._left = min(parameters.max_tokens, facts.limit - len(prompt))
        self._unstoppable = parameters.min_tokens
        stops = (parameters.stop, parameters.include_stop_str_in_output)
        self._deltas = TextDeltas(facts.decode, *stops, at_once=not streamed)

    def advance(self, token: int, score: Score | None = None) -> Piece:
        """Add a token; its score is there if `scored`.

        Raises:
            RequestError: the text's guide can go no further.
        """
        self.choice.chosen(token)
        self.last = token
        self.tokens.append(token)
        self._left -= 1
        self._unstoppable -= 1
        ended = token in self._ends
        text = "" if ended else self._deltas.push(token, stops=self._unstoppable < 0)
        ended |= self.choice.ended
        reason = "stop" if ended or self._deltas.stopped else "length" if self._left <= 0 else None
        if reason:
            text += self._deltas.finish()
        if self._deltas.stopped:  # maybe by what was held back
            reason = "stop"
        self.done = reason is not None
        found = None if score is None or self.choice.parameters.logprobs is None else score.found
        return Piece(text, reason, score.logprob if score else 0.0, found)
