"""`nereid migrate`: a model repository made of the models of another server."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from nereid.migrate import bentoml, eas, kserve, mlserver, seldon, tfserving, torchserve, verify
from nereid.migrate.plan import Found, MigratedModel, MigrationError, Refused, planned, printable
from nereid.migrate.writing import Written, write
from nereid_client.tools.arguments import command_parser

_ABOUT: Final = (
    "Make a model repository of the models of TensorFlow Serving, TorchServe, MLServer, KServe, Seldon, "
    "BentoML or Alibaba PAI-EAS."
)
_EXAMPLE: Final = """examples:
  nereid migrate tfserving models.config --to repository
  nereid migrate torchserve model_store --to repository
  nereid migrate mlserver models --to repository --json
  nereid migrate kserve services.yaml --storage /mnt/models --to repository
  nereid migrate seldon deployments.yaml --storage /mnt/models --to repository
  nereid migrate bentoml bentos/iris/1 --storage ~/bentoml/models --to repository
  nereid migrate eas service.json --storage /mnt/models --to repository
  nereid migrate tfserving models.config --to repository --verify http://old:8501 --nereid http://localhost:8000

Files are linked where the file system can, otherwise copied; nothing of the source is executed, unpickled
or changed. All of it is checked before anything is written; a model that cannot be carried over does not stop
the others. What is not carried over is printed. The exit status is 0 when every model was written, and found
equal by --verify, 1 when one was not, 2 when there is nothing to migrate. docs/models/migrate.md has more."""
_SOURCES: Final = {
    "tfserving": "a models.config, or a directory of models with <version>/saved_model.pb",
    "torchserve": "a .mar, a directory of them, or a config.properties",
    "mlserver": "a directory with model-settings.json, or of such directories",
    "kserve": "a YAML file of InferenceServices",
    "seldon": "a YAML file of SeldonDeployments (Core 1) or Models (Core 2)",
    "bentoml": "the directory of a Bento, or of a bentofile.yaml",
    "eas": "the JSON of a service, or a directory of them",
}
_NOT_V2: Final = ("bentoml",)
"""Whose servers have no API that ours has, to compare answers."""


class Outcome(NamedTuple):
    """What became of a model; `error` is "" for one that was written."""

    model: str
    written: Written | None
    notes: tuple[str, ...]
    error: str = ""
    verified: verify.Comparison | None = None

    @property
    def good(self) -> bool:
        """Whether it was written and, if that was asked for, gives equal answers."""
        return not self.error and (self.verified is None or not self.verified.difference)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.verify or arguments.load) and not arguments.nereid:
        parser.error("--verify and --load need --nereid URL")
    if arguments.verify and arguments.kind == "torchserve" and not arguments.input:
        parser.error("--verify of TorchServe needs --input FILE: only its handlers know what they take")
    if arguments.verify and arguments.kind in _NOT_V2:
        parser.error(
            f"--verify needs an old server with an API that ours has, which {arguments.kind} has not"
        )
    try:
        found = planned(_found(arguments), arguments.to)
    except (MigrationError, OSError) as error:
        print(f"nereid migrate: {printable(error)}", file=sys.stderr)
        return 2
    outcomes = []
    for outcome in _outcomes(found, arguments):
        outcomes.append(outcome)
        if not arguments.json:
            print(_text(outcome), flush=True)
    if arguments.json:
        print(json.dumps([_fields(outcome) for outcome in outcomes], indent=2))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("nereid migrate", _ABOUT, _EXAMPLE)
    parser.add_argument("kind", choices=_SOURCES, help="the old server")
    sources = "; ".join(f"{name}: {what}" for name, what in _SOURCES.items())
    parser.add_argument("source", type=Path, metavar="SOURCE", help=sources)
    parser.add_argument(
        "--to", type=Path, required=True, metavar="REPOSITORY", help="the directory to write to"
    )
    parser.add_argument("--copy", action="store_true", help="copy files that could be linked")
    parser.add_argument(
        "--batching-parameters-file", type=Path, metavar="FILE", help="as of TensorFlow Serving"
    )
    parser.add_argument(
        "--storage",
        type=Path,
        metavar="DIRECTORY",
        help="of KServe, Seldon and PAI-EAS: the model, or a directory of each service's name with it; "
        "of BentoML: its store of models",
    )
    parser.add_argument("--load", action="store_true", help="have the server --nereid load each model")
    parser.add_argument(
        "--verify", metavar="URL", help="the old server, whose answers are compared with Nereid's"
    )
    parser.add_argument("--nereid", metavar="URL", help="the HTTP address of the new server")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="body of the request of --verify; by default made up"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    return parser


def _found(arguments: argparse.Namespace) -> Iterator[Found]:
    source, storage = arguments.source, arguments.storage
    if not source.exists():
        raise MigrationError(f"there is no {source}")
    readers: dict[str, Callable[[], Iterator[Found]]] = {
        "tfserving": partial(tfserving.models, source, arguments.batching_parameters_file),
        "torchserve": partial(torchserve.models, source),
        "mlserver": partial(mlserver.models, source),
        "kserve": partial(kserve.models, source, storage),
        "seldon": partial(seldon.models, source, storage),
        "bentoml": partial(bentoml.models, source, storage),
        "eas": partial(eas.models, source, storage),
    }
    return readers[arguments.kind]()


def _outcomes(found: Iterable[Found], arguments: argparse.Namespace) -> Iterator[Outcome]:
    for each in found:
        if isinstance(each, Refused):
            yield Outcome(printable(each.model), None, (), printable(each.reason))
        else:
            yield _outcome(each, arguments)


def _outcome(model: MigratedModel, arguments: argparse.Namespace) -> Outcome:
    name, notes = model.config.name, tuple(map(printable, model.notes))
    written = None
    try:
        written = write(model, arguments.to, arguments.copy)
        if arguments.load:
            path = f"/v2/repository/models/{name}/load"
            verify.ask(arguments.nereid, verify.Request(path, b"{}"))
    except MigrationError as error:
        return Outcome(name, written, notes, printable(error))
    verified = _verified(arguments, name) if arguments.verify else None
    return Outcome(name, written, notes, verified=verified)


def _verified(arguments: argparse.Namespace, model: str) -> verify.Comparison:
    old, new = arguments.verify, arguments.nereid
    try:
        if arguments.kind == "torchserve":
            return verify.compare(model, verify.torchserve_request(model, arguments.input), old, new)
        given = arguments.input.read_bytes() if arguments.input else b""
        if arguments.kind == "tfserving":
            request = verify.tfserving_request(model, old)
            return verify.compare(model, request._replace(body=given or request.body), old, new)
        request = verify.v2_request(model, new)
        return verify.compare_v2(model, request._replace(body=given or request.body), old, new)
    except (MigrationError, OSError, ValueError, KeyError) as error:
        return verify.Comparison(model, "", f"cannot be compared: {error}")


def _text(outcome: Outcome) -> str:
    written = outcome.written
    if written is None:
        lines = [f"{outcome.model}: not written: {outcome.error}"]
    else:
        size = f"{written.nbytes / 1e6:.1f} MB"
        lines = [f"{outcome.model}: {written.files} files, {size}, {written.linked} of them links"]
        if outcome.error:
            lines.append(f"  not loaded: {outcome.error}")
    lines += [f"  note: {note}" for note in outcome.notes]
    if outcome.verified is not None:
        where = f"{outcome.verified.path}: " if outcome.verified.path else ""
        lines.append(f"  {where}{outcome.verified.difference or 'equal answers'}")
    return "\n".join(lines)


def _fields(outcome: Outcome) -> dict[str, Any]:
    return {
        "model": outcome.model,
        "written": outcome.written._asdict() if outcome.written else None,
        "error": outcome.error,
        "notes": outcome.notes,
        "verified": outcome.verified._asdict() if outcome.verified else None,
    }
