"""Keys and values of beginnings that several prompts share, so that each is read by the model once."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from backends.packaged.llm.engine.rows import Row

BLOCK: Final = 64
"""Tokens that are kept, found and dropped together."""


class _Block(NamedTuple):
    """The keys and values of a block's tokens in each layer, [heads, BLOCK, width]."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(each.nbytes for pair in self.layers for each in pair)


class PrefixCache:
    """Blocks of tokens, each known by all tokens up to its end; the least recently used are dropped.

    Attributes:
        queries, hits: tokens that were looked for, and found.
        bytes: in use.
    """

    def __init__(self, most_bytes: int) -> None:
        """Keep at most so many bytes; 0 keeps nothing."""
        self.queries = self.hits = self.bytes = 0
        self._most = most_bytes
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()

    @torch.inference_mode()
    def fill(self, row: Row, tokens: Sequence[int], owner: str) -> int:
        """Give a new row what is known of its prompt, but for the last token; return how many tokens.

        Args:
            row: without tokens.
            tokens: of its prompt.
            owner: whose blocks may be used: how soon an answer comes tells what was asked for before.
        """
        if not self._most:
            return 0
        found = []
        for key in _keys(tokens[:-1], owner):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            found.append(self._blocks[key])
        for layer, parts in enumerate(zip(*(block.layers for block in found), strict=True)):
            keys, values = zip(*parts, strict=True)
            row.store(layer, torch.cat(keys, 1), torch.cat(values, 1))
        row.length = len(found) * BLOCK
        self.queries += len(tokens)
        self.hits += row.length
        return row.length

    @torch.inference_mode()
    def keep(self, row: Row, tokens: Sequence[int], owner: str) -> None:
        """Keep what a row has read; the tokens are its own, and maybe others that it has not read."""
        if not self._most:
            return
        for number, key in enumerate(_keys(tokens[: row.length], owner)):
            if key in self._blocks:
                self._blocks.move_to_end(key)
                continue
            begin = number * BLOCK
            layers = [row.read(layer, begin, begin + BLOCK) for layer in range(row.layers)]
            block = _Block([(keys.clone(), values.clone()) for keys, values in layers])
            if not self._make_room(block.size):
                return  # those behind it could not be found without it
            self._blocks[key] = block
            self.bytes += block.size

    def _make_room(self, size: int) -> bool:
        while self._blocks and self.bytes + size > self._most:
            _, dropped = self._blocks.popitem(last=False)
            self.bytes -= dropped.size
        return self.bytes + size <= self._most


def _keys(tokens: Sequence[int], owner: str) -> Iterator[bytes]:
    """Return the keys of whole blocks, each a hash of the owner and all tokens up to the block's end."""
    digest = hashlib.sha256(owner.encode()).digest()
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        digest = hashlib.sha256(digest + np.array(tokens[begin : begin + BLOCK], np.int64).tobytes()).digest()
        yield digest
