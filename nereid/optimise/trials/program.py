"""A candidate's trial: a program of its own, which builds it, loads it beside the present form, and compares.

    python -m nereid.optimise.trials.program JOB.json

It writes `progress.json` and `result.json` beside the job, and ends with its parent.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from nereid.internals import load_internals

load_internals()

from app.core.encoding import to_json  # noqa: E402
from app.core.errors import InferError  # noqa: E402
from nereid.optimise.trials.build import Refused, calibration  # noqa: E402
from nereid.optimise.trials.candidates import Candidate  # noqa: E402
from nereid.optimise.trials.forms import CANDIDATE, PRESENT, file_of  # noqa: E402
from nereid.optimise.trials.lifeline import end_with_parent  # noqa: E402
from nereid.optimise.trials.measuring import Pair, Trial  # noqa: E402
from nereid.optimise.trials.rows import inputs_of  # noqa: E402
from nereid.optimise.trials.verdict import Seen, Wanted  # noqa: E402
from nereid_client.comparison.rules import ComparisonRules  # noqa: E402

_CALIBRATION_BYTES: Final = 1 << 30
RESULT: Final = "result.json"
PROGRESS: Final = "progress.json"


class Job(msgspec.Struct, frozen=True):
    """What a trial is to do.

    Attributes:
        models: the repository of both forms.
        source: the model's file, of which the candidate's is built.
        tape, model: where rows are, and whose.
        wall: whether time is that of a clock: what a GPU does takes none of a processor.
    """

    models: str
    source: str
    tape: str
    model: str
    candidate: Candidate
    calibration: tuple[str, ...]
    check: tuple[str, ...]
    rules: ComparisonRules
    wanted: Wanted
    wall: bool = False


class Told(msgspec.Struct, frozen=True):
    """How far a trial is, or how it ended.

    Attributes:
        stage: `build`, `load` or `check`.
        refused: why it ended before its figures; "" if it did not.
    """

    stage: str
    seen: Seen = Seen()
    refused: str = ""


def main(path: Path) -> None:
    """Run the trial of a job."""
    warnings.simplefilter("ignore")  # of the tools that build
    job = msgspec.json.decode(path.read_bytes(), type=Job)
    result = run(job, path.parent)
    _put(path.parent / RESULT, result)


def run(job: Job, directory: Path) -> Told:
    """Build, load and compare; return what was found."""
    models, candidate = Path(job.models), job.candidate
    try:
        if candidate.build:
            _put(directory / PROGRESS, Told("build"))
            rows = calibration(inputs_of(Path(job.tape), job.model, job.calibration), _CALIBRATION_BYTES)
            module, _, name = candidate.build.partition(":")
            write: Any = getattr(import_module(module), name)
            write(Path(job.source), file_of(models, candidate), rows, candidate.arguments)
            del rows
    except Refused as error:
        return Told("build", refused=str(error))
    _put(directory / PROGRESS, Told("load"))
    try:
        pair = Pair(models)
    except InferError as error:
        return Told("load", refused=error.message)
    with pair:
        trial = Trial(
            pair,
            job.rules,
            job.wanted,
            len(job.check),
            lambda seen: _put(directory / PROGRESS, Told("check", seen)),
            time.perf_counter if job.wall else time.process_time,
        )
        seen = trial.run(inputs_of(Path(job.tape), job.model, job.check))
    return Told("check", msgspec.structs.replace(seen, **_sizes(models)))


def _sizes(models: Path) -> dict[str, float]:
    """Return the bytes of the files that each form is loaded from, in MB."""

    def size(name: str) -> float:
        files = [path for path in (models / name / "1").iterdir() if path.is_file()]
        own = [path for path in files if not path.is_symlink()]  # links are to the source's
        return sum(path.stat().st_size for path in own or files) / 1e6

    return {"file_mb": size(CANDIDATE), "present_file_mb": size(PRESENT)}


def _put(path: Path, told: Told) -> None:
    """Write a file, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(to_json(told))
    unfinished.replace(path)


if __name__ == "__main__":
    end_with_parent()
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # a library's threads may hang at the end: the result is written
