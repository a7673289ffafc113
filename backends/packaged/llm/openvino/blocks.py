"""Blocks of keys and values that the texts of a model have between them. Imports no framework."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

BLOCK: Final = 32
"""Tokens of a block; OpenVINO's on the CPU."""


class Blocks:
    """Numbers of blocks, lent to texts.

    Attributes:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        """Begin with so many."""
        self.count = count
        self._free = [*range(count - 1, -1, -1)]

    def missing(self, wanted: int) -> int:
        """Return how many more there have to be before so many can be taken."""
        return max(0, wanted - len(self._free))

    def add(self, count: int) -> None:
        """Have so many more."""
        self._free += range(self.count + count - 1, self.count - 1, -1)
        self.count += count

    def take(self, wanted: int) -> list[int]:
        """Take so many, which must be there."""
        return [self._free.pop() for _ in range(wanted)]

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back."""
        self._free += blocks


@dataclass
class Table:
    """Where the tokens of a text are.

    Attributes:
        length: how many tokens the model has read.
        blocks: their blocks, in order, and maybe some without tokens.
    """

    length: int = 0
    blocks: list[int] = field(default_factory=list)

    def lacks(self, more: int) -> int:
        """Return how many blocks are missing for so many more tokens."""
        return max(0, blocks_of(self.length + more) - len(self.blocks))


def blocks_of(tokens: int) -> int:
    """Return how many blocks so many tokens need."""
    return -(-tokens // BLOCK)


class Inputs(NamedTuple):
    """What a step gives the model, by OpenVINO's names.

    Attributes:
        input_ids, position_ids: of all tokens that are read, one text behind the other, int64.
        past_lens: tokens of each text that were read before, int32.
        subsequence_begins: where each text's tokens begin, and where the last one's end, int32.
        block_indices, block_indices_begins: the blocks of all texts, and where each text's begin, int32.
        max_context_len: tokens of the longest text, int32, a scalar.
        sampled: the places of the last tokens of the texts, int64.
    """

    input_ids: Any
    position_ids: Any
    past_lens: Any
    subsequence_begins: Any
    block_indices: Any
    block_indices_begins: Any
    max_context_len: Any
    sampled: Any


def inputs_of(work: Sequence[tuple[Table, Sequence[int]]]) -> Inputs:
    """Return what the model reads when each text goes on by some tokens; their blocks are taken."""
    past = np.array([table.length for table, _ in work], np.int32)
    counts = np.array([len(tokens) for _, tokens in work], np.int32)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    used = [table.blocks[: blocks_of(table.length + len(tokens))] for table, tokens in work]
    return Inputs(
        np.array([token for _, tokens in work for token in tokens], np.int64),
        np.concatenate(
            [np.arange(each, each + count) for each, count in zip(past, counts, strict=True)]
        ).astype(np.int64),
        past,
        ends,
        np.array([block for blocks in used for block in blocks], np.int32),
        np.cumsum([0, *map(len, used)]).astype(np.int32),
        np.array((past + counts).max(), np.int32),
        ends[1:].astype(np.int64) - 1,
    )
