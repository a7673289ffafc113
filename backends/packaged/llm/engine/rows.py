"""The keys and values of one text, kept apart from those of others: nothing is padded."""

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

Tensor = torch.Tensor

_ROOM: Final = 64
"""Tokens that a buffer grows by at least."""


class Row:
    """The tokens of a text that a model has read.

    Attributes:
        length: how many; what was stored behind them, by a step that failed, does not count.
        adapter: the name of the adapter that they are read with, "" for none.
        hidden: the hidden state of the last token, [width].
    """

    def __init__(self, layers: int, adapter: str = "") -> None:
        """Begin a text for a model of so many layers."""
        self.length = 0
        self.adapter = adapter
        self.hidden: Tensor | None = None
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep the keys and values [heads, tokens, width] of a layer behind those of `length` tokens."""
        for kept, new in ((self._keys, keys), (self._values, values)):
            end = self.length + new.shape[1]
            buffer = kept[layer]
            if buffer is None or buffer.shape[1] < end:
                kept[layer] = buffer = _grown(buffer, new, self.length, end)
            buffer[:, self.length : end] = new

    def read(self, layer: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return the keys and the values [heads, end - begin, width] of a layer, as views."""
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None and values is not None
        return keys[:, begin:end], values[:, begin:end]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self._keys)


def _grown(buffer: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    """Return a buffer for `end` tokens and more, with the first `length` of the old one."""
    room = end + max(_ROOM, length // 2 if buffer is not None else 0)
    made = new.new_empty((new.shape[0], room, new.shape[2]))
    if buffer is not None:
        made[:, :length] = buffer[:, :length]
    return made


def attend(
    row: Row,
    layer: int,
    queries: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return what the next tokens of a row see of it and of each other.

    Args:
        row: its keys and values have those of the tokens behind `row.length`.
        layer: which layer.
        queries: of the tokens, [heads, tokens, width].
        scale: of their products with keys.
        window: how many tokens each sees at most, itself included; None for all before it.
        softcap: a limit that the products approach.

    Returns:
        [heads, tokens, width of values].
    """
    count = queries.shape[1]
    end = row.length + count
    begin = 0 if window is None else max(0, end - count + 1 - window)
    keys, values = row.read(layer, begin, end)
    if count == 1 or softcap is not None:
        return _products(queries, keys, values, scale, window, softcap)
    whole = begin == 0 and row.length == 0 and (window is None or window >= count)
    mask = None if whole else _mask(count, keys.shape[1], window, queries.device)
    found: Tensor = scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=whole,
        scale=scale,
        enable_gqa=queries.shape[0] != keys.shape[0],
    )
    return found[0]


def _products(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Compute the same step by step: heads that share keys are read together."""
    heads, count, width = queries.shape
    shared = keys.shape[0]
    products = torch.matmul(queries.reshape(shared, -1, width) * scale, keys.transpose(1, 2))
    if softcap is not None:
        products = torch.tanh(products / softcap) * softcap
    if count > 1:
        mask = _mask(count, keys.shape[1], window, queries.device)
        products = products.masked_fill(~mask.repeat(heads // shared, 1), -torch.inf)
    weights = products.softmax(-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(weights, values).reshape(heads, count, -1)


def _mask(count: int, length: int, window: int | None, device: torch.device) -> Tensor:
    """Return what the last `count` of `length` tokens see, [count, length]."""
    own = torch.arange(length - count, length, device=device)[:, None]
    every = torch.arange(length, device=device)
    seen = every <= own
    return seen if window is None else seen & (every > own - window)
