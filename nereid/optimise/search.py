"""The course of a search: each candidate's trial in a process of its own, and what is known so far."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from app.core.encoding import to_json
from nereid.optimise.trials import bounded
from nereid.optimise.trials.candidates import Candidate, Machine
from nereid.optimise.trials.forms import Source, lay_out, on_gpu
from nereid.optimise.trials.program import PROGRESS, RESULT, Job, Told
from nereid.optimise.trials.rows import Chosen, OptimiseError
from nereid.optimise.trials.verdict import Outcome, Seen, Status, Wanted, judge
from nereid_client.comparison.rules import ComparisonRules

STATE: Final = "optimise.json"
_LOG: Final = "log.txt"
_TOOLS: Final = ("nncf", "nereid-server", "onnx", "onnxruntime", "openvino", "tensorrt", "torch")
_BLOCK: Final = 1 << 20
_FITTING: Final = 2
"""Candidates that are measured on all processors."""

Tell = Callable[[str, float, float, str], None]
"""Is told of a stage, so much of at most so much, and a note."""


class Key(msgspec.Struct, frozen=True):
    """What a search is about: with another one it begins anew.

    Attributes:
        source: the digest of the model's file and of its configuration.
        rows: `Chosen.digest`.
        tools: versions of the packages that build and answer.
        cpu: whether the processor is the same, by a digest of its flags.
    """

    model: str
    version: int
    source: str
    rows: str
    rules: ComparisonRules
    wanted: Wanted
    tools: dict[str, str]
    cpu: str


class State(msgspec.Struct):
    """What is known so far; kept in a file, by which a search that was interrupted goes on.

    Attributes:
        outcomes: by the candidate's name.
        served: what the best ones answer on all processors, see `nereid.optimise.loads`.
    """

    key: Key
    outcomes: dict[str, Outcome] = {}
    served: dict[str, list[float]] = {}
    notes: list[str] = []

    def save(self, directory: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OptimiseError: it cannot be written.
        """
        try:
            unfinished = directory / f"{STATE}.unfinished"
            unfinished.write_bytes(msgspec.json.format(to_json(self), indent=1) + b"\n")
            unfinished.replace(directory / STATE)
        except OSError as error:
            raise OptimiseError(f"cannot write {directory / STATE}: {error.strerror}") from None


def resumed(directory: Path, key: Key) -> State:
    """Return what an earlier search about the same has found; nothing if there was none."""
    try:
        found = msgspec.json.decode((directory / STATE).read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return State(key)
    return found if found.key == key else State(key)


class Search(NamedTuple):
    """What trials have in common.

    Attributes:
        source: the model.
        tape: the directory or file of the rows.
        chosen: those that are used.
        rules: what may differ.
        wanted: what a candidate has to show.
        machine: what there is here.
        limits: of a trial.
        directory: of the search's files.
        tell: is told how far it is.
    """

    source: Source
    tape: Path
    chosen: Chosen
    rules: ComparisonRules
    wanted: Wanted
    machine: Machine
    limits: bounded.Limits
    directory: Path
    tell: Tell

    def key(self) -> Key:
        """Return what this search is about."""
        source = self.source
        return Key(
            source.name,
            source.version,
            digest_of(source),
            self.chosen.digest,
            self.rules,
            self.wanted,
            tools(),
            hashlib.blake2b(" ".join(sorted(self.machine.cpu)).encode(), digest_size=8).hexdigest(),
        )

    def run(self, candidates: Sequence[Candidate], state: State) -> None:
        """Try each candidate that the state does not know; it is saved after each.

        Raises:
            OptimiseError: the model as it is cannot be asked, or a file cannot be written.
        """
        for candidate in candidates:
            if candidate.name not in state.outcomes:
                state.outcomes[candidate.name] = self.outcome(candidate)
                state.save(self.directory)

    def outcome(self, candidate: Candidate) -> Outcome:
        """Try one candidate; what is written for it stays below the search's directory."""
        if why := self.machine.lacks(candidate):
            return Outcome(candidate.name, candidate.about, "skipped", why)
        directory = self.directory / "candidates" / candidate.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        models = lay_out(directory, self.source, candidate, threads=1)
        job = Job(
            str(models.absolute()),
            str((self.source.files / self.source.file).absolute()),
            str(self.tape.absolute()),
            self.source.name,
            candidate,
            self.chosen.calibration,
            self.chosen.check,
            self.rules,
            self.wanted,
            wall=candidate.gpu or on_gpu(self.source.config),
        )
        (directory / "job.json").write_bytes(to_json(job))
        command = [sys.executable, "-m", "nereid.optimise.trials.program", str(directory / "job.json")]
        ended = bounded.run(
            command, self.limits, directory / _LOG, look=lambda: self._look(candidate, directory)
        )
        return _outcome(candidate, ended, directory, self.wanted)

    def _look(self, candidate: Candidate, directory: Path) -> None:
        told = _read(directory / PROGRESS)
        if told is None:
            self.tell(candidate.name, 0, 1, "")
        elif told.stage == "check":
            seen = told.seen
            note = f"{seen.bad} of {seen.counted} differ, {seen.ratio:.2f} times as fast"
            self.tell(candidate.name, seen.compared, seen.rows, note)
        else:
            self.tell(candidate.name, 0, len(self.chosen.check), told.stage)


def _outcome(candidate: Candidate, ended: bounded.Ended, directory: Path, wanted: Wanted) -> Outcome:
    told = _read(directory / RESULT) if not ended.why else _read(directory / PROGRESS)
    stage, seen = (told.stage, told.seen) if told is not None else ("build", Seen())
    if ended.why or told is None:
        status: Status = "failed"
        why = f"{stage}: {ended.why or bounded.last_line(directory / _LOG)}"
    elif told.refused:
        if "'present'" in told.refused:
            raise OptimiseError(f"the model as it is cannot be loaded: {told.refused}")
        status, why = "failed", f"{stage}: {told.refused}"
    else:
        status, why = judge(seen, wanted)
    return Outcome(
        candidate.name,
        candidate.about,
        status,
        why,
        stage,
        seen,
        ended.seconds,
        ended.peak / 1e6,
    )


def _read(path: Path) -> Told | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Told)
    except (OSError, msgspec.DecodeError):
        return None


def digest_of(source: Source) -> str:
    """Return a digest of the files of the version and of the model's configuration."""
    digest = hashlib.blake2b(source.config.SerializeToString(deterministic=True), digest_size=16)
    for path in sorted(each for each in source.files.rglob("*") if each.is_file()):
        digest.update(f"{path.relative_to(source.files)}\0{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def tools() -> dict[str, str]:
    """Return the versions of the packages that build and answer candidates."""
    found = {}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def fitting(state: State) -> list[Outcome]:
    """Return the candidates that fit, the fastest first."""
    found = [each for each in state.outcomes.values() if each.status == "fits"]
    return sorted(found, key=lambda each: -each.seen.ratio)[:_FITTING]
