"""Texts that a model of OpenVINO continues together, by blocks of keys and values."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import openvino
import torch

from backends.packaged.llm.openvino.blocks import BLOCK, Blocks, Table, inputs_of
from backends.packaged.llm.openvino.network import CACHES, Network

Work = Sequence[tuple["Row", Sequence[int]]]

_FIRST: Final = 64
"""Blocks that are there from the beginning."""
_PROBES: Final = ([1, 2, 3, 4, 5, 6, 7], [3, 2, 1])
_TOLERANCE: Final = 0.05
"""Of the spread of the logits: another mask or other positions differ by more."""


class Row(Table):
    """The tokens of a text that the model has read; see `backends.packaged.llm.engine.rows.Row`."""

    hidden: torch.Tensor | None = None

    def __init__(self, batch: "Batch") -> None:
        """Begin a text."""
        super().__init__()
        self._batch = batch

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self._batch.caches)

    def read(self, layer: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of whole blocks of tokens, [heads, places, width] of keys and of values."""
        numbers = self.blocks[begin // BLOCK : end // BLOCK]
        keys, values = (_joined(cache[numbers]) for cache in self._batch.caches[layer])
        return keys, values

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put what `read` returned at the beginning of a text."""
        count = keys.shape[1] // self._batch.caches[layer][0].shape[2]
        self._batch.reserve([(self, count * BLOCK)])
        for cache, given in zip(self._batch.caches[layer], (keys, values), strict=True):
            cache[self.blocks[:count]] = _parted(given.numpy(), count)


class Batch:
    """Rows of tokens whose keys and values OpenVINO keeps in blocks, by its attention for pages.

    Attributes:
        joins: whether several texts are read in a step.
        caches: the blocks of keys and of values of each layer, [blocks, heads, places, width].
    """

    joins = True

    def __init__(self, network: Network) -> None:
        """Use a model; it is run a few times, because first runs take longer.

        Raises:
            ValueError: its texts differ where others are read beside them.
        """
        self._network = network
        self._request = network.compiled.create_infer_request()
        self._blocks = Blocks(0)
        self.caches: list[tuple[Any, Any]] = [
            (np.empty((0, *keys), network.kept), np.empty((0, *values), network.kept))
            for keys, values in network.shapes
        ]
        self._grow(_FIRST)
        self._probe()

    def row(self, adapter: str = "") -> Row:
        """Begin a text; there are no adapters."""
        return Row(self)

    def free(self, row: Row) -> None:
        """End a text."""
        self._blocks.free(row.blocks)
        row.blocks, row.length = [], 0

    def forward(self, work: Work) -> torch.Tensor:
        """Read tokens of rows, at least one each; return the logits of what follows, [rows, vocabulary].

        They are valid until the next step. A row is as before when this raises.
        """
        self.reserve([(row, len(tokens)) for row, tokens in work])
        for name, value in inputs_of(work)._asdict().items():
            tensor = openvino.Tensor(openvino.Type(value.dtype), openvino.Shape(value.shape))
            tensor.data[...] = value
            self._request.set_tensor(name, tensor)
        self._request.infer()
        hidden = self._request.get_tensor("hidden").data if self._network.tells_hidden else None
        for index, (row, tokens) in enumerate(work):
            row.length += len(tokens)
            row.hidden = None if hidden is None else torch.from_numpy(hidden[index].reshape(-1).copy())
        logits = self._request.get_tensor("logits").data
        return torch.from_numpy(logits.reshape(len(work), -1))

    def reserve(self, work: Sequence[tuple[Row, int]]) -> None:
        """Have each row own the blocks of so many more tokens."""
        missing = self._blocks.missing(sum(row.lacks(count) for row, count in work))
        if missing:
            self._grow(max(missing, self._blocks.count))
        for row, count in work:
            row.blocks += self._blocks.take(row.lacks(count))

    def _grow(self, count: int) -> None:
        wanted = self._blocks.count + count
        for layer, pair in enumerate(self.caches):
            grown = []
            for name, cache in zip(CACHES, pair, strict=True):
                # One that has failed for want of memory may have left some layers with more.
                made = np.zeros((max(wanted, len(cache)), *cache.shape[1:]), cache.dtype)
                made[: len(cache)] = cache
                shared = openvino.Tensor(made, openvino.Shape(made.shape), self._network.type)
                self._request.set_tensor(f"{name}.{layer}", shared)
                grown.append(made)
            self.caches[layer] = (grown[0], grown[1])
        self._blocks.add(count)

    def _probe(self) -> None:
        """Compare what two texts get beside each other, one in two steps, with what each gets alone."""
        expected, (long, short) = [], _PROBES
        for prompt in _PROBES:
            row = self.row()
            expected.append(self.forward([(row, prompt)])[0].clone())
            self.free(row)
        rows = [self.row(), self.row()]
        self.forward([(rows[0], long[:4])])
        found = self.forward([(rows[1], short), (rows[0], long[4:])])
        for logits, wanted in zip(found.flip(0), expected, strict=True):
            if not float((logits - wanted).abs().max()) <= _TOLERANCE * float(wanted.max() - wanted.min()):
                raise ValueError("the model's texts differ where others are read beside them")
        for row in rows:
            self.free(row)


def _joined(blocks: Any) -> torch.Tensor:
    """Return blocks [blocks, heads, places, width] as [heads, blocks * places, width]."""
    count, heads, places, width = blocks.shape
    return torch.from_numpy(blocks.transpose(1, 0, 2, 3).reshape(heads, count * places, width))


def _parted(rows: Any, count: int) -> Any:
    heads, places, width = rows.shape
    return rows.reshape(heads, count, places // count, width).transpose(1, 0, 2, 3)
