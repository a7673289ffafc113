"""The next token of a generation, drawn from a model's logits."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from backends.packaged.llm.sampling import SamplingParameters

Tensor = torch.Tensor


class Logprob(NamedTuple):
    """The probability of a token; rank 1 is the most probable."""

    logprob: float
    rank: int
    decoded_token: str


class Choice:
    """Chooses the tokens of one generation.

    Attributes:
        greedy: whether each is the most probable one, whatever came before.
    """

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int], device: torch.device) -> None:
        self._parameters = parameters
        self._prompt = prompt
        self._generated: Counter[int] = Counter()
        penalties = (parameters.presence_penalty, parameters.frequency_penalty)
        self._penalised = parameters.repetition_penalty != 1 or any(penalties)
        self.greedy = parameters.temperature == 0 and not self._penalised
        self._generator = torch.Generator(device)
        if parameters.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(parameters.seed)

    def __call__(self, logits: Tensor) -> int:
        """Return the next token for logits of shape [vocabulary], which are not changed."""
        logits = logits.float()
        if self._penalised:
            logits = self._less_repetition(logits)
        if self._parameters.temperature == 0:
            token = int(logits.argmax())
        else:
            likely = _likely(logits / self._parameters.temperature, self._parameters)
            token = int(torch.multinomial(likely.softmax(-1), 1, generator=self._generator))
        if self._penalised:
            self._generated[token] += 1
        return token

    def _less_repetition(self, logits: Tensor) -> Tensor:
        """Apply the penalties: for repetition to prompt and text, the others to the text alone."""
        logits, given = logits.clone(), self._parameters
        seen = torch.tensor(sorted({*self._prompt, *self._generated}), device=logits.device)
        old = logits[seen]
        logits[seen] = torch.where(old > 0, old / given.repetition_penalty, old * given.repetition_penalty)
        if self._generated:
            tokens = torch.tensor(list(self._generated), device=logits.device)
            counts = torch.tensor(list(self._generated.values()), device=logits.device)
            logits[tokens] -= given.frequency_penalty * counts + given.presence_penalty
        return logits


def _likely(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Set the logits of tokens that top_k, top_p and min_p leave out to minus infinity."""
    if 0 < parameters.top_k < len(logits):
        least = logits.topk(parameters.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if parameters.min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < parameters.min_p * probabilities.max(), -torch.inf)
    if parameters.top_p < 1:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        logits = logits.masked_fill(_scattered(before >= parameters.top_p, order), -torch.inf)
    return logits


def _scattered(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).scatter_(0, order, values)


def logprobs(
    logits: Tensor, token: int, count: int, decode: Callable[[Any], str]
) -> tuple[float, dict[int, Logprob]]:
    """Return a token's logarithmic probability, and those of it and of the `count` most probable tokens."""
    every = logits.float().log_softmax(-1)
    own = float(every[token])
    found = {token: Logprob(own, int((every > own).sum()) + 1, decode([token]))}
    if count:
        best = every.topk(min(count, len(every)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        for rank, (each, value) in enumerate(pairs, 1):
            found.setdefault(each, Logprob(value, rank, decode([each])))
    return own, found
