"""Rows of a table through a model of an engine."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.json_format import MessageToJson
from tritonclient.grpc import model_config_pb2 as mc

from app.core import hints
from app.core.datatypes import BY_CONFIG_NAME
from app.core.errors import InferError, invalid_arg
from app.core.identifiers import name_of
from app.protocol.classification import classify
from app.settings.load import from_args
from nereid.engine.arrays import tensor_of
from nereid.engine.engine import Engine
from nereid.offline.arrow import texts
from nereid.offline.blocks import POSITION, InputError, Rows
from nereid.offline.columns import Array, Values, Wanted, output_column, row_values

ERROR: Final = "error"
"""The column that says why a row has no outputs."""
_ROWS: Final = 32
"""Rows of a request to a model that takes more than that at once."""


class Job(NamedTuple):
    """What is to be done with the rows.

    Attributes:
        repository: of models.
        model: the name of the model.
        version: "" for the one that the model's policy chooses.
        columns: where inputs are that have another name than their column; several are joined, in this order.
        keep: columns that go into the output; the position of the row if there is none.
        outputs: those that are wanted; all by default.
        classes: of each output the so many best, as text, in place of its values; 0 for the values.
        rows: of a request; 0 for as many as the model takes, up to 32.
        fail: whether the first row that fails ends the run.
        flags: further flags of the server.
    """

    repository: tuple[str, ...]
    model: str
    version: str = ""
    columns: Mapping[str, Sequence[str]] = {}
    keep: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    classes: int = 0
    rows: int = 0
    fail: bool = False
    flags: Mapping[str, Any] = {}


class RowError(Exception):
    """A row failed, in a run that ends with the first one."""


class Model:
    """A model of an engine of its own, asked for the rows of tables."""

    def __init__(self, job: Job) -> None:
        """Load the model.

        Raises:
            InferError: it cannot be loaded.
            InputError: it cannot be asked for rows.
        """
        flags = {"model_control_mode": "explicit", "model_repository": list(job.repository), **job.flags}
        self._engine = Engine(from_args(flags), lends_loop=False)
        self._job = job
        try:
            self._engine.start()
            instances = self._load()
            self._config = self._engine.config(job.model, job.version)
            self._rows = job.rows or min(self._config.max_batch_size, _ROWS) or 1
            self._check()
            self._in_flight = 2 * instances
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unload it."""
        self._engine.close()

    def _check(self) -> None:
        config = self._config
        if config.model_transaction_policy.decoupled or config.HasField("sequence_batching"):
            kind = (
                "any number of responses to a row"
                if config.model_transaction_policy.decoupled
                else "sequences"
            )
            raise InputError(f"model '{config.name}' has {kind}: rows of files have one answer each")
        if self._rows > max(config.max_batch_size, 1):
            raise InputError(f"model '{config.name}' takes {config.max_batch_size or 1} rows at once")
        for kind, named, known in (
            ("input", self._job.columns, [each.name for each in config.input]),
            ("output", self._job.outputs, [each.name for each in config.output]),
        ):
            if unknown := {*named} - {*known}:
                told = f"its {kind}s are {', '.join(known)}"
                raise InputError(f"model '{config.name}' has no {kind} '{min(unknown)}': {told}")
        of_texts = [each.name for each in self._outputs() if each.data_type == mc.TYPE_STRING]
        if self._job.classes and of_texts:
            raise InputError(f"output '{of_texts[0]}' is no numbers: name those to class by --outputs")

    def _check_model(self, there: Iterable[str]) -> None:
        name, names = self._job.model, sorted({name_of(each) for each in there})
        if name not in names:
            where = ", ".join(self._job.repository)
            near = hints.did_you_mean(name, names)
            told = f"{near}{' ' if near else ''}It has: {hints.named(names) or 'no models'}"
            raise InputError(f"there is no model '{name}' in {where}: {told}")

    def _load(self) -> int:
        """Load models without their dynamic batching; return the largest number of instances among them.

        Requests have many rows already. Which of them are joined depends on the time, and on that in turn the
        last bits of results, and whether a row fails together with another one.
        """
        engine, name = self._engine, self._job.model
        self._check_model(engine.repository.catalog.scan())
        declared = _with_steps(name, lambda each: engine.repository.catalog.candidate(each, None).config)
        # Steps first: the load of an ensemble loads those that are not there.
        batching = [each for each in reversed(declared) if declared[each].HasField("dynamic_batching")]
        for each in batching:
            engine.load(each, _without_batching(declared[each]))
        if name not in batching:
            engine.load(name)
        instances = 1
        for each in declared:
            config = engine.config(each)
            if config.HasField("dynamic_batching"):  # nothing but the loaded model has told of it
                engine.load(each, _without_batching(config))
            instances = max(instances, sum(group.count for group in config.instance_group))
        return instances

    @property
    def batched(self) -> bool:
        """Whether it takes several rows at once."""
        return bool(self._config.max_batch_size)

    def run(self, rows: Rows) -> pa.Table:
        """Return the rows' kept columns, outputs and errors, in their order.

        Raises:
            InputError: a column is missing.
            RowError: a row failed, where that ends the run.
        """
        table, errors = rows.table, dict(rows.errors)
        inputs = {w.name: row_values(table, w, errors) for w in self._wanted(table)} if len(table) else {}
        found: dict[str, list[Array | None]] = {each.name: [None] * len(table) for each in self._outputs()}
        good = [number for number in range(len(table)) if number not in errors]
        for numbers, answer in self._answers(inputs, good):
            if isinstance(answer, InferError):
                errors[numbers[0]] = answer.message
                continue
            for name, values in found.items():
                for place, number in enumerate(numbers):
                    value = answer[name][place] if self._config.max_batch_size else answer[name]
                    values[number] = self._classed(name, value) if self._job.classes else value
        self._fail_by(errors, table)
        kept = {name: table[name] for name in self._kept(table)}
        columns = {spec.name: self._column(spec, found[spec.name]) for spec in self._outputs()}
        reasons = texts([errors.get(number) for number in range(len(table))], pa.string())
        return pa.table({**kept, **columns, ERROR: reasons})

    def _column(self, spec: mc.ModelOutput, values: Sequence[Array | None]) -> Any:
        if self._job.classes:
            return output_column(values, "BYTES", [-1]).cast(pa.list_(pa.string()))
        return output_column(values, _datatype(spec.data_type), spec.dims)

    def _classed(self, name: str, value: Array) -> Array:
        """Return the best classes of a row, as `classify` has them."""
        labels = self._engine.labels(self._job.model, self._job.version).get(name, ())
        return classify(tensor_of(name, value, None), self._job.classes, labels).array()

    def _wanted(self, table: pa.Table) -> list[Wanted]:
        """Return where inputs are: in columns of their names, or in those that a tape's rows have."""
        columns = dict(self._job.columns)
        for each in self._config.input:
            recorded = f"in.{each.name}"
            if each.name not in (*columns, *table.column_names) and recorded in table.column_names:
                columns[each.name] = (recorded,)
        return [
            Wanted(
                each.name,
                tuple(columns.get(each.name, (each.name,))),
                _datatype(each.data_type),
                tuple(each.dims),
                each.optional,
            )
            for each in self._config.input
            if not each.optional or each.name in columns
        ]

    def _outputs(self) -> list[mc.ModelOutput]:
        wanted = self._job.outputs
        return [each for each in self._config.output if not wanted or each.name in wanted]

    def _kept(self, table: pa.Table) -> Sequence[str]:
        missing = [name for name in self._job.keep if name not in table.column_names]
        if missing:
            raise InputError(f"there is no column '{missing[0]}' to keep: {', '.join(table.column_names)}")
        return self._job.keep or (POSITION,)

    def _fail_by(self, errors: Mapping[int, str], table: pa.Table) -> None:
        if errors and self._job.fail:
            number = min(errors)
            raise RowError(f"row {table[POSITION][number].as_py()}: {errors[number]}")

    def _answers(
        self, inputs: Mapping[str, Values], numbers: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], dict[str, Array] | InferError]]:
        """Yield answers with the rows that each is for; errors are of single rows."""
        flying: deque[tuple[Sequence[int], Future[dict[str, Array]]]] = deque()
        waiting = deque(_batches(inputs, numbers, self._rows))
        while waiting or flying:
            while waiting and len(flying) < self._in_flight:
                batch = waiting.popleft()
                flying.append((batch, self._submit(inputs, batch)))
            batch, future = flying.popleft()
            try:
                yield batch, self._checked(future.result(), batch)
            except InferError as error:
                if len(batch) == 1:
                    yield batch, error
                else:  # which of them was it?
                    waiting.extendleft([number] for number in reversed(batch))

    def _submit(self, inputs: Mapping[str, Values], batch: Sequence[int]) -> "Future[dict[str, Array]]":
        joined: dict[str, Array] = {}
        for name, values in inputs.items():
            first = values[batch[0]]
            if first is None:  # as in all rows of the batch
                continue
            if not self._config.max_batch_size:
                joined[name] = first
            elif isinstance(values, np.ndarray) and batch[-1] - batch[0] == len(batch) - 1:
                joined[name] = values[batch[0] : batch[-1] + 1]
            else:
                joined[name] = np.stack([value for number in batch if (value := values[number]) is not None])
        future: Future[dict[str, Array]] = Future()
        try:
            return self._engine.submit(
                self._job.model, joined, version=self._job.version, outputs=self._job.outputs
            )
        except InferError as error:
            future.set_exception(error)
            return future

    def _checked(self, answer: dict[str, Array], batch: Sequence[int]) -> dict[str, Array]:
        for spec in self._outputs():
            array = answer.get(spec.name)
            if array is None:
                raise invalid_arg(f"the answer has no output '{spec.name}'")
            if self._config.max_batch_size and len(array) != len(batch):
                raise invalid_arg(f"output '{spec.name}' has {len(array)} rows for {len(batch)}")
        return answer


def _datatype(number: int) -> str:
    return BY_CONFIG_NAME[mc.DataType.Name(number)].name


def _without_batching(config: mc.ModelConfig) -> str:
    """Return a configuration as JSON, without its dynamic batching."""
    other = mc.ModelConfig.FromString(config.SerializeToString())
    other.ClearField("dynamic_batching")
    return str(MessageToJson(other, preserving_proto_field_name=True))


def _with_steps(name: str, read: Callable[[str], mc.ModelConfig]) -> dict[str, mc.ModelConfig]:
    """Return the configurations of a model and, behind it, of all that it calls as an ensemble."""
    found = {name: read(name)}
    waiting = [found[name]]
    for config in waiting:  # which grows meanwhile
        steps = [each.model_name for each in config.ensemble_scheduling.step if each.model_name not in found]
        found |= {each: read(each) for each in steps}
        waiting += [found[each] for each in dict.fromkeys(steps)]
    return found


def _batches(inputs: Mapping[str, Values], numbers: Sequence[int], rows: int) -> Iterator[Sequence[int]]:
    """Divide rows into requests of at most so many, each of rows with the same inputs and shapes."""
    alike: dict[tuple[tuple[int, ...] | None, ...], list[int]] = {}
    for number in numbers:
        row = (values[number] for values in inputs.values())
        alike.setdefault(tuple(None if each is None else each.shape for each in row), []).append(number)
    for group in alike.values():
        for start in range(0, len(group), rows):
            yield group[start : start + rows]
