"""Models over the rows of datasets of Ray Data, by engines in its actors.

import nereid, ray

rows = ray.data.read_parquet("s3://bucket/pictures/")
answers = nereid.batch(rows, repository="models", model="classes", columns={"IMAGE": "bytes"})
answers.write_parquet("s3://bucket/classes/")
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from nereid.internals import load_internals

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset


class ActorsError(Exception):
    """Ray could not start the actors, or lost them, with the reason in a sentence."""


class Answers:
    """Answers tables of rows; a stage of a dataset, with an engine in each actor."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        load_internals()
        from nereid.offline.execution import Job, Model

        self._model = Model(Job(**job))

    def __call__(self, table: "pa.Table") -> "pa.Table":
        from nereid.offline.blocks import POSITION, Rows

        if POSITION not in table.column_names:
            import pyarrow as pa

            table = table.append_column(POSITION, pa.array([str(n) for n in range(len(table))]))
        return self._model.run(Rows(table, {}))


class Parts:
    """Writes the parts of blocks; a stage of the dataset of the command `nereid batch`.

    What is wrong with the command is part of an answer: an exception here would be pages of Ray's.
    """

    def __init__(self, job: Mapping[str, Any], source: str, kind: str, output: str) -> None:
        load_internals()
        from app.core.errors import InferError
        from nereid.offline.blocks import InputError, open_source
        from nereid.offline.execution import Job
        from nereid.offline.output import Output
        from nereid.offline.run import Worker

        self._fault = ""
        try:
            self._worker = Worker(Job(**job), open_source(source, kind, job["model"]), Output.open(output))
        except InferError as error:
            self._fault = error.message
        except InputError as error:
            self._fault = str(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        from nereid.offline.blocks import Block, InputError
        from nereid.offline.execution import RowError

        number, kind, paths, *rest = row["block"]
        answer = {"number": int(number), "rows": 0, "failed": 0, "fault": self._fault, "row_fault": ""}
        if self._fault:
            return answer
        try:
            done = self._worker.write(Block(int(number), kind, tuple(paths), *map(int, rest)))
        except InputError as error:
            return {**answer, "fault": str(error)}
        except RowError as error:
            return {**answer, "row_fault": str(error)}
        return {**answer, **done._asdict()}


def batch(
    rows: "Dataset",
    *,
    repository: str | Sequence[str],
    model: str,
    version: str = "",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    keep: Sequence[str] = (),
    outputs: Sequence[str] = (),
    classes: int = 0,
    batch_size: int = 1024,
    actors: int = 1,
    on_error: str = "row",
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    flags: Mapping[str, Any] | None = None,
) -> "Dataset":
    """Return the answers of a model to the rows of a dataset: kept columns, outputs, and the column `error`.

    Args:
        rows: with a column for each input of the model.
        repository: directories of models.
        model: the model's name; ensembles and models that call others, too.
        version: "" for the one that the version policy chooses.
        columns: the column of an input, where its name differs, or several, whose values are joined.
        keep: columns that the answers have, too.
        outputs: names of the outputs that are wanted; all by default.
        classes: the so many best classes of each output, "value:index:label", in place of its values.
        batch_size: rows that an actor gets at once; the model's requests are as large as it takes, up to 32.
        actors: processes, each of which loads the model.
        on_error: "row" to keep rows that fail, with their error; "fail" to fail with the first one.
        num_cpus, num_gpus: of an actor.
        flags: further flags of the server, with underscores.
    """
    job = {"model": model, "version": version, "classes": classes, "fail": on_error == "fail"}
    job |= {"repository": _several(repository), "keep": tuple(keep), "outputs": tuple(outputs)}
    job |= {"columns": {name: _several(each) for name, each in (columns or {}).items()}, "flags": flags or {}}
    return _answered(rows, job, batch_size, actors, num_cpus, num_gpus)


def _several(text: str | Sequence[str]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def _answered(
    rows: "Dataset",
    job: Mapping[str, Any],
    batch_size: int,
    actors: int,
    num_cpus: float | None,
    num_gpus: float | None,
) -> "Dataset":
    from ray.data import ActorPoolStrategy

    return rows.map_batches(
        Answers,
        fn_constructor_args=(job,),
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ActorPoolStrategy(size=actors),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )


def write_parts(
    job: Mapping[str, Any],
    places: tuple[str, str, str],
    blocks: Iterable[Sequence[Any]],
    actors: int,
    gpus: float,
) -> Iterator[dict[str, int]]:
    """Write parts of the output of `nereid batch` in actors, which do again what a lost one had begun.

    Args:
        job: fields of `nereid.offline.execution.Job`.
        places: the input, its format, the output.
        blocks: of the input.
        actors: how many.
        gpus: of an actor.

    Yields:
        Numbers of a block, its rows, and those that failed, in any order.

    Raises:
        InputError: as in one process.
        RowError: a row failed, where that ends the run.
        ActorsError: Ray failed, on a machine that is too busy for instance.
    """
    answers = _answers(job, places, blocks, actors, gpus)
    while True:
        try:
            answer = next(answers, None)
        except Exception as error:  # Ray has many kinds, some of them plain
            raise ActorsError(_reason(error)) from error
        if answer is None:
            return
        yield told(answer)


def _answers(
    job: Mapping[str, Any],
    places: tuple[str, str, str],
    blocks: Iterable[Sequence[Any]],
    actors: int,
    gpus: float,
) -> Iterator[Mapping[str, Any]]:
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    # Between the lines of the command's progress only what is wrong; Ray's own files have the rest.
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    DataContext.get_current().enable_progress_bars = False
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    rows = [{"block": list(block)} for block in blocks]
    parts = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        cast("Any", Parts),
        fn_constructor_args=(job, *places),
        compute=ActorPoolStrategy(size=actors),
        num_cpus=max(1, int(resources["CPU"]) // actors),
        num_gpus=gpus or None,
    )
    yield from parts.iter_rows()


def _reason(error: Exception) -> str:
    """Return Ray's reason in one sentence: the last line of a traceback, or the first of another text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = lines[-1] if "Traceback" in str(error) or lines[0].startswith("ray::") else lines[0]
    return (
        f"Ray's actors did not finish it: {said.rstrip('.')}. --resume goes on with it; a busy machine needs"
        " fewer --actors, or none"
    )


def told(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return what an actor has done of a block; raise what it could not do."""
    from nereid.offline.blocks import InputError
    from nereid.offline.execution import RowError

    if answer["fault"]:
        raise InputError(answer["fault"])
    if answer["row_fault"]:
        raise RowError(answer["row_fault"])
    return {name: answer[name] for name in ("number", "rows", "failed")}
