"""`nereid drift reference`: writes what a model's inputs and outputs look like now, for drift to be told."""

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import output_specs
from app.core.config.text import parse_config_json
from app.core.drift.building import side
from app.core.drift.counts import PERIOD_S
from app.core.drift.reference import (
    FEWEST_ROWS,
    REFERENCE_FILE,
    Reference,
    Side,
    decode_reference,
    encode_reference,
)
from app.core.errors import InferError
from app.core.whole_files import write_whole
from deployments.model_store.fingerprint import version_bytes, version_content
from deployments.model_store.layout import ModelEntry, find
from deployments.model_store.model_files import complete_config, read_config
from nereid.commands.drift.sources import Choice, SourceError, Tensors, is_tape, of_file, of_tape
from nereid.commands.drift.text import clock
from nereid.commands.servers import Api, Unanswered, add_pid, add_token, api_of, find_server
from nereid_client.tools.arguments import positive

ABOUT: Final = "Write what a model's inputs and outputs look like, to tell later whether that has changed."
EXAMPLES: Final = """examples:
  nereid drift reference wine --from /var/lib/nereid/tape         # newest rows of a tape
  nereid drift reference wine --from /var/lib/nereid/tape --next 24h   # the rows of the next day
  nereid drift reference wine --from train.parquet --map x=alcohol,ash,hue
  nereid drift reference wine --from day.npz --outputs            # outputs of a new version; inputs stay

The reference is drift.json in the model's directory. A running server uses it within seconds."""
MOST_ROWS: Final = 100_000

pause = time.sleep

_MOST_READ: Final = 1 << 30
"""Bytes of a version up to which its content is read, to name it in the reference."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL")
    text = "a tape (directory or file), or rows: .npz, .csv, Parquet or JSON lines"
    parser.add_argument("--from", required=True, metavar="PATH", dest="source", help=text)
    text = "the rows that a tape will have got after so long, such as 30m, 24h or 7d"
    parser.add_argument("--next", type=_duration, metavar="TIME", help=text)
    text = "directory of models; by default those of this user's server"
    parser.add_argument("--repository", metavar="DIR", help=text)
    text = "version whose outputs they are; by default the newest"
    parser.add_argument("--version", type=positive, metavar="N", help=text)
    text = "columns of a tensor, where they are not called as it is"
    parser.add_argument("--map", action="append", type=_mapped, default=[], metavar="X=A,B", help=text)
    parser.add_argument("--rows", type=positive, default=MOST_ROWS, metavar="N", help="most that are read")
    parser.add_argument("--outputs", action="store_true", help="write those of outputs alone")
    add_pid(parser)
    add_token(parser)


def _duration(text: str) -> float:
    """Read a duration in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no duration such as 30m, 24h or 7d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _mapped(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, columns = text.partition("=")
    if not (name and equals and columns):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=COLUMN or NAME=COLUMN,COLUMN")
    return name, tuple(columns.split(","))


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    try:
        entry, config = _model(options)
        version = options.version or max(entry.versions, default=1)
        tensors = _rows(options, config, version)
        reference, notes = _made(entry, config, version, tensors, options)
        path = entry.directory / REFERENCE_FILE
        text = encode_reference(reference)
        decode_reference(text)
        # The server may be another user's, as that of the model's other files.
        write_whole(path, text, lambda descriptor: os.fchmod(descriptor, 0o644))
    except (SourceError, InferError, Unanswered) as error:
        print(error.message if isinstance(error, InferError) else error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or options.model}: {error.strerror}", file=sys.stderr)
        return 1
    print("\n".join([*_said(path, reference, version), *notes]))
    return 0


def _model(options: argparse.Namespace) -> tuple[ModelEntry, mc.ModelConfig]:
    """Return the model's directory, and its configuration: complete, where a server has it loaded."""
    record = None if options.repository else find_server(options.pid)
    if not options.repository and record is None:
        raise SourceError("--repository=DIR names the directory of models")
    places = [options.repository] if options.repository else record.repositories if record else ()
    local = {Path(place): "" for place in places if "://" not in place}
    found = [each for place in local for each in find({place: ""}, options.model)]
    if len(found) != 1:
        where = ", ".join(places) or "no directory"
        raise SourceError(f"model '{options.model}' is {'twice' if found else 'not'} in {where}")
    entry = found[0]
    if record is not None:
        try:
            return entry, _served(api_of(record, options), options.model)
        except Unanswered:
            pass  # it is not loaded; what its files say may do
    return entry, complete_config(entry, read_config(entry, "", True))


def _served(api: Api, model: str) -> mc.ModelConfig:
    text = api.ask("GET", f"/v2/models/{quote(model, safe='')}/config")
    return parse_config_json(text.decode())


def _rows(options: argparse.Namespace, config: mc.ModelConfig, version: int) -> Tensors:
    """Read the rows.

    Raises:
        SourceError: there are too few.
    """
    since_ns = _awaited(options) if options.next else 0
    if is_tape(options.source):
        wanted = str(version) if options.version or options.outputs else ""
        choice = Choice(options.model, wanted, since_ns)
        found = of_tape(options.source, choice, config.max_batch_size > 0, options.rows)
    else:
        found = of_file(options.source, config, dict(options.map), options.rows)
    if found.rows < FEWEST_ROWS:
        why = "".join(f"; {number} rows: {text}" for text, number in found.skipped.items())
        names = ", ".join(each.name for each in (*config.input, *config.output))
        raise SourceError(
            f"{options.source} has {found.rows} rows of tensors of model '{options.model}' ({names}), and a"
            f" reference needs {FEWEST_ROWS}, better 10,000{why}"
        )
    return found


def _awaited(options: argparse.Namespace) -> int:
    """Wait until the tape has got the rows that are to come; return since when, in ns since the epoch."""
    began = time.time()
    print(f"waiting until {clock(began + options.next)} for rows that come to {options.source}", flush=True)
    pause(options.next)
    return int(began * 1e9)


def _made(
    entry: ModelEntry, config: mc.ModelConfig, version: int, tensors: Tensors, options: argparse.Namespace
) -> tuple[Reference, list[str]]:
    """Return the reference with what stays of the one before, and notes on what is not in it."""
    path, now = entry.directory / REFERENCE_FILE, time.time()
    old = decode_reference(path.read_bytes(), str(path)) if path.exists() else None
    inputs, left = side(tensors.inputs, now, options.source)
    if options.outputs or not inputs.tensors:
        if old is None:
            raise SourceError(f"there are no rows of inputs, and no {path} has them")
        inputs, left = old.inputs, []
    outputs = {} if old is None else dict(old.outputs)
    classes = [spec.name for spec in output_specs(config) if spec.label_filename]
    content = version_content(entry, version) if version_bytes(entry, version) <= _MOST_READ else ""
    found, more = side(tensors.outputs, now, options.source, classes, content)
    if found.tensors:
        outputs[str(version)] = found
    known = {str(each) for each in (*entry.versions, version)}
    reference = Reference(inputs, {key: each for key, each in outputs.items() if key in known})
    notes = [
        f"not watched: {name} (nothing can be told of it, or too many features)" for name in (*left, *more)
    ]
    return reference, notes + [
        f"left out: {number:,} rows {text}" for text, number in tensors.skipped.items()
    ]


def _said(path: Path, reference: Reference, version: int) -> list[str]:
    outputs = reference.outputs.get(str(version))
    lines = [f"{path} is written; a server that runs uses it within {2 * PERIOD_S:.0f} s"]
    lines.append(f"inputs: {_side(reference.inputs)}")
    lines.append(f"outputs of version {version}: {_side(outputs) if outputs else 'none'}")
    if reference.inputs.rows < 10 * FEWEST_ROWS:
        lines.append("it has few rows: a change is told later than with 10,000")
    return lines


def _side(found: Side) -> str:
    tensors = ", ".join(f"{each.name} ({each.kind}: {len(each.features)})" for each in found.tensors)
    return f"{found.rows:,} rows; features of {tensors or 'nothing'}"
