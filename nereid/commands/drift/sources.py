"""Rows of a model's tensors, for its reference: of a tape, or of a file."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.drift.extraction import Rows
from app.core.installed.installation import install_command
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor
from nereid_client.tape.segments import OPEN, SEALED
from nereid_client.tools.tapes import opened

MOST_BYTES: Final = 1 << 30
"""Bytes of the tensors that are read; of larger ones fewer rows are a reference too."""
_BLOCK: Final = 4096
_RANDOM: Final = ("rate", "sequence")
"""Why a row was recorded that was chosen at random: failures and slow ones are not what requests are like."""


class SourceError(Exception):
    """The rows cannot be read, with the reason."""


class Tensors(NamedTuple):
    """Rows of inputs and outputs by name, in batches, and what was left out."""

    inputs: dict[str, list[Rows]]
    outputs: dict[str, list[Rows]]
    skipped: dict[str, int]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return max(
            (sum(map(len, each)) for each in (*self.inputs.values(), *self.outputs.values())), default=0
        )


class Choice(NamedTuple):
    """Rows of a tape.

    Attributes:
        model: its name.
        version: that has answered; "" for any.
        since_ns: the earliest arrival, since the epoch.
    """

    model: str
    version: str = ""
    since_ns: int = 0


class _Bound:
    """Ends a source when it has given enough rows or bytes."""

    def __init__(self, rows: int) -> None:
        self._rows, self._bytes = rows, MOST_BYTES

    def take(self, rows: int, nbytes: int) -> bool:
        """Count; return whether more may come."""
        self._rows -= rows
        self._bytes -= nbytes
        return self._rows > 0 and self._bytes > 0


def is_tape(path: str) -> bool:
    """Return whether a path is a tape rather than a file of rows."""
    found = Path(path)
    return found.suffix in (OPEN, SEALED) or (
        found.is_dir() and any(each.suffix in (OPEN, SEALED) for each in found.rglob("*"))
    )


def of_tape(path: str, choice: Choice, batched: bool, most: int) -> Tensors:
    """Read the newest rows of a tape.

    Args:
        path: of the tape.
        choice: which of them.
        batched: whether the first dimension of its tensors is that of rows.
        most: rows.

    Raises:
        SourceError: there is no such tape.
    """
    found = Tensors(defaultdict(list), defaultdict(list), {})
    bound = _Bound(most)
    try:
        with opened(path) as tape:
            for row in tape.rows(models=[choice.model], newest_first=True):
                if row.arrived_ns < choice.since_ns:
                    break
                if why := _unfit(row, choice.version):
                    found.skipped[why] = found.skipped.get(why, 0) + 1
                elif not bound.take(*_add(found, row, batched)):
                    break
    except (TapeError, OSError) as error:
        raise SourceError(str(error)) from None
    return found


def _unfit(row: Row, version: str) -> str:
    """Return why a row is no example of the model's requests; "" if it is one."""
    if row.reason not in _RANDOM:
        return "not recorded at random"
    if row.failed or not row.responses:
        return "failed"
    return "of another version" if version and row.version != version else ""


def _add(found: Tensors, row: Row, batched: bool) -> tuple[int, int]:
    rows = nbytes = 0
    outputs = row.responses[0].outputs
    for target, tensors in ((found.inputs, row.inputs), (found.outputs, outputs)):
        for tensor in tensors:
            table = _table(tensor, batched)
            if table is not None and len(table):
                target[tensor.name].append(table)
                rows, nbytes = max(rows, len(table)), nbytes + tensor.nbytes
    return rows, nbytes


def _table(tensor: TapeTensor, batched: bool) -> Rows | None:
    """Return a copy of a tensor as rows, because its bytes are the tape's; None if they were not kept."""
    if tensor.state != KEPT:
        return None
    array = tensor.array()
    table = array if batched else array[None]
    return np.array(table) if table.ndim else None


def of_file(path: str, config: Any, columns: Mapping[str, tuple[str, ...]], most: int) -> Tensors:
    """Read the rows of a file: NumPy's .npz by names of tensors, Parquet, JSON lines or CSV by columns.

    Args:
        path: of the file, or what `nereid batch` takes for an input.
        config: the model's complete configuration.
        columns: those of a tensor, where they are not called as it is, or `in.NAME` and `out.NAME`.
        most: rows.

    Raises:
        SourceError: it cannot be read, or has rows of another shape than the model's.
    """
    read = _npz if path.endswith(".npz") else _of_columns
    return read(path, config, columns, most)


def _npz(path: str, config: Any, columns: Mapping[str, tuple[str, ...]], most: int) -> Tensors:
    found = Tensors({}, {}, {})
    try:
        with np.load(path, allow_pickle=False) as file:
            for target, specs in ((found.inputs, input_specs(config)), (found.outputs, output_specs(config))):
                for spec in specs:
                    name = columns.get(spec.name, (spec.name,))[0]
                    if name in file:
                        target[spec.name] = [_typed(file[name][:most], spec)]
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {error}") from None
    return found


def _typed(rows: Any, spec: TensorSpec) -> Rows:
    if rows.dtype.kind in "US":
        texts = [
            each.encode() if isinstance(each, str) else bytes(each) for each in rows.reshape(-1).tolist()
        ]
        made = np.empty(len(texts), object)
        made[:] = texts
        return made.reshape(rows.shape)
    if not rows.ndim:
        raise ValueError(f"'{spec.name}' has no rows")
    return np.asarray(rows)


def _of_columns(path: str, config: Any, columns: Mapping[str, tuple[str, ...]], most: int) -> Tensors:
    try:
        from nereid.offline.blocks import InputError
        from nereid.offline.columns import Wanted, row_values
    except ImportError:
        raise SourceError(f"{path}: files of columns need pyarrow: {install_command('batch')}") from None
    found, bound = Tensors(defaultdict(list), defaultdict(list), {}), _Bound(most)
    specs = [(found.inputs, "in", spec) for spec in input_specs(config)]
    specs += [(found.outputs, "out", spec) for spec in output_specs(config)]
    try:
        for table in _tables(path):
            for target, side, spec in specs:
                names = columns.get(spec.name) or _called(spec.name, side, table.column_names)
                if names:
                    errors: dict[int, str] = {}
                    values = row_values(table, Wanted(spec.name, names, spec.datatype, spec.dims), errors)
                    target[spec.name] += _good(values, errors, found.skipped)
            if not bound.take(table.num_rows, table.nbytes):
                break
    except (InputError, OSError, ValueError) as error:
        raise SourceError(f"{path}: {error}") from None
    return found


def _tables(path: str) -> Iterator[Any]:
    """Yield the tables of a file, one after the other."""
    if path.endswith(".csv"):
        import pyarrow.csv

        yield pyarrow.csv.read_csv(path)
        return
    from nereid.offline.blocks import blocks, open_source, read

    source = open_source(path)
    for block in blocks(source, _BLOCK):
        yield read(source, block).table


def _called(name: str, side: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the column of a tensor: its own name, or that of an exported tape."""
    found = {*columns}
    return next(((each,) for each in (name, f"{side}.{name}") if each in found), ())


def _good(values: Any, errors: Mapping[int, str], skipped: dict[str, int]) -> list[Rows]:
    """Return rows of one shape together; those that have none are counted."""
    for text in errors.values():
        skipped[text] = skipped.get(text, 0) + 1
    if isinstance(values, np.ndarray):
        return [values]
    return [np.asarray(each)[None] for number, each in enumerate(values) if number not in errors]
