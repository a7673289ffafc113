"""A run over blocks of an input."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa

from nereid.offline.blocks import Block, Rows, Source, read
from nereid.offline.execution import ERROR, Job, Model
from nereid.offline.output import Output


class Done(NamedTuple):
    """A block that is written: how many rows it has, and how many of them failed."""

    number: int
    rows: int
    failed: int


class Kept(NamedTuple):
    """What an earlier run has written: parts, their rows, and how many of those have failed."""

    parts: int
    rows: int
    failed: int


def kept(output: Output, blocks: Sequence[Block]) -> Kept:
    """Count what the parts of blocks have.

    Raises:
        InputError: a part cannot be read.
    """
    errors = [output.column(block, ERROR) for block in blocks]
    return Kept(len(errors), sum(map(len, errors)), sum(len(each) - each.null_count for each in errors))


class Worker:
    """Writes the parts of blocks, by an engine of its own."""

    def __init__(self, job: Job, source: Source, output: Output) -> None:
        self._source, self._output = source, output
        self._model = Model(job)

    def close(self) -> None:
        """Unload the model."""
        self._model.close()

    def write(self, block: Block) -> Done:
        """Read a block, ask the model, write the part.

        Raises:
            InputError: the block cannot be read.
            RowError: a row failed, where that ends the run.
        """
        return self.put(block, self.answer(self.read(block)))

    def read(self, block: Block) -> Rows:
        return read(self._source, block, self._model.batched)

    def answer(self, rows: Rows) -> pa.Table:
        """Return what the model says of rows."""
        return self._model.run(rows)

    def put(self, block: Block, table: pa.Table) -> Done:
        """Write the part of a block."""
        self._output.write(block, table)
        return Done(block.number, len(table), len(table) - table[ERROR].null_count)


def here(job: Job, source: Source, output: Output, blocks: Sequence[Block]) -> Iterator[Done]:
    """Work in this process; while the model has a block, the next one is read and the last one written."""
    with closing(Worker(job, source, output)) as worker, ThreadPoolExecutor(1) as beside:
        written: Future[Done] | None = None
        ahead = beside.submit(worker.read, blocks[0])
        for number, block in enumerate(blocks, 1):
            rows = ahead.result()
            if number < len(blocks):
                ahead = beside.submit(worker.read, blocks[number])
            table = worker.answer(rows)
            if written is not None:
                yield written.result()
            written = beside.submit(worker.put, block, table)
        assert written is not None
        yield written.result()
