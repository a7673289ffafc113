"""Writes the best candidate as the next version of its model; nothing that is there is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from app.core.encoding import to_json
from app.core.errors import InferError
from deployments.model_store.layout import ROLLOUT_FILE
from deployments.model_store.version_file import VERSION_FILE, read_version_file
from deployments.rollout.states.policy import parse_policy
from nereid.optimise.search import Search, digest_of, tools
from nereid.optimise.trials.candidates import Candidate
from nereid.optimise.trials.forms import Source, file_of, form_of
from nereid.optimise.trials.rows import OptimiseError
from nereid.optimise.trials.verdict import Outcome
from nereid_client.comparison.acceptance import rows_needed
from nereid_client.comparison.rules import ComparisonRules

_REQUESTS: Final = 2000
_CONFIDENCE: Final = 0.99
"""That of recorded requests in a rollout."""


class Written(NamedTuple):
    """The version that was written, and sentences for a person."""

    version: int
    sentences: list[str]


def write(search: Search, candidate: Candidate, outcome: Outcome) -> Written:
    """Write the version behind the newest one, and a `rollout.yaml` if there is none.

    Raises:
        OptimiseError: the directory cannot be written, or has such a version meanwhile.
    """
    source = search.source
    number = max(source.versions) + 1
    target, unfinished = source.directory / str(number), source.directory / f".{number}.unfinished"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        _copy(search, candidate, unfinished)
        document = msgspec.json.format(to_json(_about(search, candidate, outcome)), indent=2)
        (unfinished / VERSION_FILE).write_bytes(document + b"\n")
        read_version_file(unfinished, source.config.backend)
        # The policy first: a server that polls loads the version as soon as it is there.
        policy = _write_policy(search)
        os.rename(unfinished, target)
    except (OSError, InferError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OptimiseError(f"version {number} cannot be written: {_why(error)}") from None
    return Written(number, [*_said(search, candidate, number), *policy])


def _why(error: OSError | InferError) -> str:
    if isinstance(error, InferError):
        return error.message
    if isinstance(
        error, shutil.Error
    ):  # of `copytree`: the files that it could not copy, each with the reason
        failed = error.args[0]
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"'{failed[0][0]}' cannot be copied: {failed[0][2]}{more}"
    return f"{error.strerror}: {error.filename}" if error.strerror else str(error)


def _copy(search: Search, candidate: Candidate, target: Path) -> None:
    """Copy what the version is to have: what was built, and what the present one has beside its model."""
    source = search.source
    left_out = {VERSION_FILE, *([source.file] if candidate.file else [])}
    shutil.copytree(
        source.files,
        target,
        ignore=lambda folder, names: left_out.intersection(names) if Path(folder) == source.files else (),
    )
    if candidate.file:
        built = file_of(search.directory / "candidates" / candidate.name / "models", candidate)
        for path in built.parent.iterdir():
            if path.is_file() and not path.is_symlink():
                shutil.copyfile(path, target / path.name)


def _about(search: Search, candidate: Candidate, outcome: Outcome) -> Mapping[str, Any]:
    """Return the file of the version: what a server reads of it, and what somebody may ask later."""
    source = search.source
    figures = msgspec.to_builtins(outcome.seen)
    del figures["worst"]
    return {
        "config": msgspec.to_builtins(form_of(source, candidate)),
        "cpu_flags": search.machine.needed(candidate),
        "candidate": candidate.name,
        "about": candidate.about,
        "source": {"version": source.version, "digest": digest_of(source)},
        "tape": {"rows": len(search.chosen.check), "digest": search.chosen.digest},
        "tools": tools(),
        "keeps": msgspec.to_builtins(search.wanted),
        "figures": figures,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def policy_of(rules: ComparisonRules, agreement: float) -> str:
    """Return a `rollout.yaml`: recorded requests first, by the rules by which the candidate was chosen."""
    output = msgspec.to_builtins(msgspec.structs.replace(rules, min_agreement=agreement))
    if not output["outputs"]:
        del output["outputs"]
    requests = max(_REQUESTS, 2 * rows_needed(0, 1 - agreement, _CONFIDENCE))
    content = {"tape": {"requests": requests, "required": True}, "judge": {"output": output}}
    text = yaml.safe_dump(content, sort_keys=False)
    parse_policy(text)
    return (
        f"# Written by nereid optimise: a new version answers recorded requests before clients' own.\n{text}"
    )


def _write_policy(search: Search) -> list[str]:
    """Write the policy if there is none; return what a person is to know."""
    path = search.source.directory / ROLLOUT_FILE
    text = policy_of(search.rules, search.wanted.agreement)
    if path.exists():
        rules = text.partition("\n")[2].replace("\n", "; ")
        return [
            f"{ROLLOUT_FILE} is there and stays: its `tape` and `judge.output` decide, not these: {rules}"
        ]
    unfinished = path.with_name(f".{ROLLOUT_FILE}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)
    return [f"Wrote {path}: a rollout begins with recorded requests, so the server needs --tape."]


def _said(search: Search, candidate: Candidate, number: int) -> list[str]:
    source = search.source
    flags = search.machine.needed(candidate)
    needs = f", for processors with {', '.join(flags)}" if flags else ""
    found = [f"Wrote version {number} of {source.name} ({candidate.name}){needs}; others are as they were."]
    if why := _unserved(source, number):
        found.append(why)
    else:
        found.append(f"Next: nereid rollout start {source.name}")
    return found


def _unserved(source: Source, number: int) -> str:
    """Return a sentence if the model's version policy does not choose the new version."""
    policy = source.config.version_policy
    if policy.HasField("specific") and number not in policy.specific.versions:
        return f"The version policy of {source.name} names versions, and {number} is not among them."
    return ""
