"""The directory that a run writes: a Parquet file for each block, and a manifest when all are there."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from nereid.offline.blocks import Block, InputError

_JOB: Final = "_job.json"
_MANIFEST: Final = "_manifest.json"
_PART: Final = "part-"


class Output(NamedTuple):
    """The directory, in any storage that fsspec knows."""

    url: str
    storage: Any
    path: str

    @classmethod
    def open(cls, url: str) -> "Output":
        """Make the directory; raise `InputError` if that fails."""
        try:
            storage, path = fsspec.core.url_to_fs(url)
            storage.makedirs(path, exist_ok=True)
        except (OSError, ValueError, ImportError) as error:
            raise InputError(f"cannot write to '{url}': {error}") from error
        return cls(storage.unstrip_protocol(path), storage, path.rstrip("/"))

    def begin(self, job: dict[str, Any], blocks: Sequence[Block], resume: bool) -> list[Block]:
        """Write down what the run does; return the blocks that have no part yet.

        Raises:
            InputError: another run was here, or this one and it is not to go on.
        """
        described = json.dumps(job, indent=2, sort_keys=True).encode()
        found = self.storage.ls(self.path, detail=False) if self.storage.exists(self.path) else []
        known = {name.rpartition("/")[2] for name in found}
        if _JOB in known:
            if not resume:
                raise InputError(f"'{self.path}' has the output of a run: --resume goes on with it")
            if self.storage.cat_file(f"{self.path}/{_JOB}") != described:
                raise InputError(f"'{self.path}' has the output of another run: see {_JOB} in it")
        elif any(not name.startswith(".") for name in known):  # what was being written has a point
            raise InputError(f"'{self.path}' is not empty")
        else:
            self._put(_JOB, described)
        return [block for block in blocks if part(block) not in known]

    def give_up(self) -> None:
        """Forget a run that has written no part, so that another one may write here."""
        names = [name.rpartition("/")[2] for name in self.storage.ls(self.path, detail=False)]
        if _JOB in names and not any(name.startswith(_PART) for name in names):
            self.storage.rm_file(f"{self.path}/{_JOB}")

    def write(self, block: Block, table: pa.Table) -> None:
        """Write the part of a block, whole or not at all."""
        sink = pa.BufferOutputStream()
        repeated = [path for field in table.schema for path in _repeated(field.name, field.type)]
        pq.write_table(table, sink, use_dictionary=repeated)
        self._put(part(block), sink.getvalue().to_pybytes())

    def column(self, block: Block, name: str) -> pa.ChunkedArray:
        """Read a column of the part of a block; raise `InputError` if it cannot be read."""
        path = f"{self.path}/{part(block)}"
        try:
            with self.storage.open(path, "rb") as file:
                return pq.read_table(file, columns=[name])[name]
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"cannot read '{path}': {error}") from error

    def finish(self, blocks: Sequence[Block]) -> None:
        """Write the manifest."""
        self._put(_MANIFEST, json.dumps({"parts": [part(block) for block in blocks]}, indent=2).encode())

    def _put(self, name: str, content: bytes) -> None:
        if "file" not in self.storage.protocol:  # objects appear when they are whole
            self.storage.pipe_file(f"{self.path}/{name}", content)
            return
        unfinished = f"{self.path}/.{name}.{uuid4().hex}"
        self.storage.pipe_file(unfinished, content)
        self.storage.mv(unfinished, f"{self.path}/{name}")


def _repeated(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield a column as Parquet calls it if its values may repeat.

    What models compute hardly does: to look for that takes three times as long as to write it.
    """
    while pa.types.is_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    if not pa.types.is_floating(kind):
        yield path


def part(block: Block) -> str:
    """Return the name of a block's part."""
    return f"{_PART}{block.number:06}.parquet"
