"""Texts that a model continues together: their keys and values in one cache, padded at the left."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Tensor = torch.Tensor
_PROBE = (0, 0)


class Batch:
    """Rows of a cache, one for each text; rows are added and dropped between steps.

    Attributes:
        joins: whether there may be several rows: the model takes positions, and each layer keeps all keys
            and values. Others, with sliding windows for instance, continue one text at a time.
    """

    def __init__(self, model: Any) -> None:
        """Use a model of transformers; it is run once, because a first run takes longer."""
        self._model = model
        self.device: torch.device = model.device
        accepted = inspect.signature(model.forward).parameters
        self._positions = "position_ids" in accepted
        self._only_last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._lengths: list[int] = []
        self._cache: Any = None
        self.joins = False
        self.add([_PROBE])
        cache: Any = self._cache
        self.joins = self._positions and all(type(layer) is DynamicLayer for layer in cache.layers)
        self.step([0])
        self.keep([])

    @torch.inference_mode()
    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts, each a new row; return the logits of what follows each, [prompts, vocabulary].

        Neighbours of similar lengths are read together, if rows may be added at all.
        """
        read = [self._read(prompts[group]) for group in together([*map(len, prompts)])]
        self._cache = _joined([*([self._cache] if self._lengths else ()), *(cache for cache, _ in read)])
        self._lengths += map(len, prompts)
        return torch.cat([logits for _, logits in read])

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Read prompts as one batch; return its cache, and the logits of what follows each."""
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        options: dict[str, Any] = self._only_last.copy()
        if min(lengths) < longest:
            mask = self._mask(lengths, longest)
            options |= {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
        tokens = [[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        cache, ids = DynamicCache(config=self._model.config), torch.tensor(tokens, device=self.device)
        found = self._model(input_ids=ids, past_key_values=cache, use_cache=True, **options)
        logits: Tensor = found.logits[:, -1]
        return cache, logits

    def _mask(self, lengths: Sequence[int], width: int) -> Tensor:
        """Return which of the last `width` places are in use by rows of these lengths."""
        first = torch.tensor([width - length for length in lengths], device=self.device)
        return (torch.arange(width, device=self.device) >= first[:, None]).long()

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """Add a token to each row; return the logits of what follows, [rows, vocabulary]."""
        options: dict[str, Any] = {}
        if self._positions:
            options["position_ids"] = torch.tensor(self._lengths, device=self.device)[:, None]
        longest = max(self._lengths)
        if min(self._lengths) < longest:
            options["attention_mask"] = self._mask([length + 1 for length in self._lengths], longest + 1)
        self._lengths = [length + 1 for length in self._lengths]
        column = torch.tensor(tokens, device=self.device)[:, None]
        found = self._model(input_ids=column, past_key_values=self._cache, use_cache=True, **options)
        logits: Tensor = found.logits[:, -1]
        return logits

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        if len(rows) == len(self._lengths):
            return
        before = max(self._lengths)
        self._lengths = [self._lengths[row] for row in rows]
        if not rows:
            self._cache = None
            return
        unused = before - max(self._lengths)
        kept = torch.tensor(rows, device=self.device)
        for layer in self._cache.layers:
            layer.keys = layer.keys[kept, :, unused:]
            layer.values = layer.values[kept, :, unused:]


def together(lengths: Sequence[int]) -> list[slice]:
    """Return which prompts are read as one batch, as far as padding does not double any of them."""
    groups, start = list[slice](), 0
    for end in range(1, len(lengths) + 1):
        part = lengths[start : end + 1]
        if end == len(lengths) or max(part) > 2 * min(part):
            groups.append(slice(start, end))
            start = end
    return groups


def _joined(caches: Sequence[Any]) -> Any:
    """Join caches along the rows; a single one is returned as it is."""
    first = caches[0]
    if len(caches) > 1:
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            layers[0].keys = _stacked([layer.keys for layer in layers])
            layers[0].values = _stacked([layer.values for layer in layers])
    return first


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors [rows, heads, length, width] along the rows, with zeros in front of shorter ones."""
    longest = max(part.shape[-2] for part in parts)
    return torch.cat([pad(part, (0, 0, longest - part.shape[-2], 0)) for part in parts])
