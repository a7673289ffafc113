"""The next tokens of generations, drawn from a model's logits: all rows of a step at once."""

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch

from backends.packaged.llm.engine.noise import gumbel
from backends.packaged.llm.engine.sampling import SamplingParameters

Tensor = torch.Tensor

_FIRST: Final = 1024
"""So many of the most probable tokens are looked at before the whole vocabulary is sorted."""
_LEAST: Final = 1e-30
"""A temperature that float32 has."""


class RequestError(ValueError):
    """A text cannot go on because of what its request asks for; the text is for the client."""


class Logprob(NamedTuple):
    """The probability of a token; rank 1 is the most probable."""

    logprob: float
    rank: int
    decoded_token: str


class Guide(Protocol):
    """See `backends.packaged.llm.engine.guided.Guide`."""

    def mask(self, logits: Tensor) -> None: ...

    def chosen(self, token: int) -> bool: ...


class Choice:
    """What the tokens of one generation are chosen by.

    Attributes:
        parameters: those of the request.
        ended: whether the guide lets nothing follow.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        device: torch.device,
        ends: Collection[int] = (),
        guide: Guide | None = None,
    ) -> None:
        """Begin a generation; `ends` are the tokens that may not come before `min_tokens` others."""
        self.parameters = parameters
        self.ended = False
        self._guide = guide
        self._prompt = prompt
        self._device = device
        self._count = 0
        self._seed = secrets.randbits(64) if parameters.seed is None else parameters.seed
        penalties = (parameters.presence_penalty, parameters.frequency_penalty)
        self._penalised = parameters.repetition_penalty != 1 or any(penalties)
        self._ends = self._tokens(ends) if parameters.min_tokens else None
        self._biased = self._tokens(parameters.logit_bias)
        self._biases = torch.tensor([*parameters.logit_bias.values()], device=device)
        self._counts: Tensor | None = None
        self._read: Tensor | None = None

    def _tokens(self, tokens: Collection[int]) -> Tensor:
        return torch.tensor([*tokens], dtype=torch.long, device=self._device)

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` changes the next logits."""
        waits = self._count < self.parameters.min_tokens
        return self._penalised or waits or bool(self.parameters.logit_bias) or self._guide is not None

    def adjust(self, logits: Tensor) -> None:
        """Change float logits of shape [vocabulary], in place."""
        if self._guide is not None:
            self._guide.mask(logits)
        logits[self._biased] += self._biases
        if self._ends is not None and self._count < self.parameters.min_tokens:
            ends = self._ends[(self._ends >= 0) & (self._ends < len(logits))]
            kept = logits[ends]
            logits[ends] = -torch.inf
            if self._guide is not None and bool((logits == -torch.inf).all()):
                logits[ends] = kept  # nothing else may follow
        if self._penalised:
            self._less_repetition(logits)

    def _less_repetition(self, logits: Tensor) -> None:
        """Apply the penalties: for repetition to prompt and text, the others to the text alone."""
        given = self.parameters
        if self._counts is None or self._read is None:
            self._counts, self._read = torch.zeros_like(logits), torch.zeros_like(logits, dtype=torch.bool)
            self._read[self._tokens(self._prompt)] = True
        factor = given.repetition_penalty
        seen = self._read | (self._counts > 0)
        logits[seen] = torch.where(logits > 0, logits / factor, logits * factor)[seen]
        logits -= given.frequency_penalty * self._counts + given.presence_penalty * (self._counts > 0)

    def noise(self, vocabulary: int) -> Tensor:
        """Return what decides the next draw beside probabilities, [vocabulary]."""
        return gumbel(self._seed, self._count, vocabulary).to(self._device)

    def chosen(self, token: int) -> None:
        """Learn of the next token."""
        self._count += 1
        if self._guide is not None:
            self.ended = self._guide.chosen(token)
        if self._counts is not None:
            self._counts[token] += 1


def choose(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """Return the next token of each generation, which is to learn of it by `chosen`.

    Args:
        logits: of shape [rows, vocabulary]; they are not changed.
        choices: one for each row.
    """
    changed = [row for row, choice in enumerate(choices) if choice.adjusts]
    values = logits.float()
    if changed:
        values = values.clone() if values is logits else values
        for row in changed:
            choices[row].adjust(values[row])
    tokens: list[int] = values.argmax(-1).tolist()
    for draw, kind in ((_draw, _is_free), (_draw_likely, _is_limited)):
        if rows := [row for row, choice in enumerate(choices) if kind(choice.parameters)]:
            found = draw(values[rows], [choices[row] for row in rows])
            for row, token in zip(rows, found, strict=True):
                tokens[row] = token
    return tokens


def _is_limited(given: SamplingParameters) -> bool:
    return given.temperature > 0 and (given.top_p < 1 or given.top_k > 0 or given.min_p > 0)


def _is_free(given: SamplingParameters) -> bool:
    return given.temperature > 0 and not _is_limited(given)


def _draw(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """Draw a token of each row."""
    found: list[int] = (_cooled(logits, choices) + _noise(logits, choices)).argmax(-1).tolist()
    return found


def _draw_likely(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """Draw a token of each row, from those that top_k, min_p and top_p leave."""
    cooled = _cooled(logits, choices)
    probabilities = cooled.softmax(-1)
    vocabulary = logits.shape[-1]
    given = [choice.parameters for choice in choices]
    limits = [each.top_k if each.top_k > 0 else vocabulary for each in given]
    rules = [
        _column(values, logits)
        for values in (limits, [each.min_p for each in given], [each.top_p for each in given])
    ]
    best, order = probabilities.topk(min(vocabulary, _FIRST))
    likely, whole = _likely(best, *rules)
    if not whole and vocabulary > _FIRST:
        best, order = probabilities.sort(descending=True)
        likely, _ = _likely(best, *rules)
    values = (cooled + _noise(logits, choices)).gather(-1, order).masked_fill(likely == 0, -torch.inf)
    found: list[int] = order.gather(-1, values.argmax(-1, keepdim=True))[:, 0].tolist()
    return found


def _cooled(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Return logits divided by temperatures; the greatest of each row is 0."""
    temperatures = _column([max(choice.parameters.temperature, _LEAST) for choice in choices], logits)
    return (logits - logits.amax(-1, keepdim=True)) / temperatures


def _noise(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    return torch.stack([choice.noise(logits.shape[-1]) for choice in choices])


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor([values], dtype=torch.float32, device=like.device).T


def _likely(best: Tensor, top_k: Tensor, min_p: Tensor, top_p: Tensor) -> tuple[Tensor, bool]:
    """Clear what top_k, min_p and top_p leave out.

    Args:
        best: the greatest probabilities of each row, in falling order.
        top_k, min_p, top_p: of each row, [rows, 1].

    Returns:
        The rest, and whether nothing that `best` lacks belongs to it.
    """
    places = torch.arange(best.shape[-1], device=best.device)
    kept = best.masked_fill((places >= top_k) | (best < min_p * best[:, :1]), 0)
    cut = kept[:, -1:] == 0  # what is not in `best` is left out too
    total = torch.where(cut, kept.sum(-1, keepdim=True), 1)
    sums = kept.cumsum(-1)
    enough = sums[:, -1:] >= top_p * total
    whole = bool((cut | (enough & (top_p < 1))).all())
    return kept.masked_fill(sums - kept >= top_p * total, 0), whole


class Score(NamedTuple):
    """A token's logarithmic probability, and those of it and of the most probable tokens."""

    logprob: float
    found: dict[int, Logprob]


def scores(
    logits: Tensor, tokens: Sequence[int], counts: Sequence[int], spell: Callable[[Any], str]
) -> list[Score]:
    """Return the probabilities of chosen tokens, and of the `counts` most probable ones beside each.

    Args:
        logits: as the model gives them, [rows, vocabulary].
        tokens: the one chosen of each row.
        counts: how many of the most probable tokens are wanted beside it.
        spell: from tokens to text.
    """
    every = logits.float().log_softmax(-1)
    own = every.gather(-1, torch.tensor(tokens, device=every.device)[:, None])
    ranks: list[int] = ((every > own).sum(-1) + 1).tolist()
    values: list[float] = own[:, 0].tolist()
    best = every.topk(min(max(counts), every.shape[-1]))
    found = []
    for row, (token, count) in enumerate(zip(tokens, counts, strict=True)):
        known = {token: Logprob(values[row], ranks[row], spell([token]))}
        pairs = zip(best.indices[row, :count].tolist(), best.values[row, :count].tolist(), strict=True)
        for rank, (each, value) in enumerate(pairs, 1):
            known.setdefault(each, Logprob(value, rank, spell([each])))
        found.append(Score(values[row], known))
    return found
