"""`nereid batch`: put the rows of files through a model, without a server."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from app.core.errors import InferError
from app.core.installed.installation import install_command
from app.settings.flag.errors import SettingsError
from nereid_client.tools.arguments import command_parser, count, from_zero, positive
from nereid_client.tools.progress import Shown
from nereid_client.tools.tapes import tell

if TYPE_CHECKING:  # they need pyarrow
    from nereid.offline.blocks import Block, Source
    from nereid.offline.execution import Job
    from nereid.offline.output import Output

_ABOUT: Final = "Put the rows of Parquet, JSON lines, tapes or other files through a model, without a server."
_EXAMPLE: Final = """example:
  nereid batch --repository models --model classifier --input 'pictures/' --output classes --map IMAGE=bytes
  nereid batch --repository models --model scores --input 's3://bucket/*.parquet' --output s3://bucket/out \\
      --map X=age,income,score --keep id --actors 4 --resume
  nereid batch --repository models --model scores --input /var/lib/nereid/tape --output again --keep key

Inputs of the model are read from columns of their names. Of a tape, the model's requests are rows. Other
files than *.parquet and *.jsonl are rows with the columns `row` (the name) and `bytes`; in JSON, {"b64":
"..."} is a binary value. The output has a Parquet file for each block of rows, with the kept columns, the
model's outputs, and `error`. --resume goes on with a run that was cut off. The exit status is 0 when every
row of the output has an answer, 1 when some have none, 2 when nothing was run."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        from nereid.offline import ActorsError
        from nereid.offline.blocks import InputError
        from nereid.offline.execution import RowError
    except ImportError:
        print(f"nereid batch needs pyarrow: {install_command('batch')}", file=sys.stderr)
        return 2
    try:
        summary = _run(arguments)
    except KeyboardInterrupt:
        print("stopped: --resume goes on with it", file=sys.stderr)
        return 130
    except (RowError, ActorsError) as error:
        print(error, file=sys.stderr)
        return 1
    except (InputError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 2
    except InferError as error:
        print(error.message, file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(summary))
    else:
        print(_sentence(summary))
    return 1 if summary["failed"] or summary["kept_failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("nereid batch", _ABOUT, _EXAMPLE)
    add = parser.add_argument
    add("--repository", action="append", required=True, metavar="DIRECTORY", help="a directory of models")
    add("--model", required=True, help="its name; ensembles and models that call others, too")
    add("--version", default="", help="by default that of the model's version policy")
    add("--input", required=True, help="a file, a directory or a pattern; s3://, gs:// and others too")
    add("--output", required=True, help="a directory, which must be empty unless the run goes on")
    text, formats = "by default that of the names", ("parquet", "jsonl", "tape", "files")
    add("--format", choices=formats, default="", help=text)
    text = "the column of an input, or several, A,B,C, whose values are joined"
    add("--map", action="append", default=[], metavar="INPUT=COLUMN", help=text)
    add("--keep", action="append", default=[], metavar="COLUMN", help="a column of the output; default: row")
    add(
        "--outputs",
        action="append",
        default=[],
        metavar="NAME",
        help="an output that is wanted; default: all",
    )
    text = "the so many best classes of each output, value:index:label, in place of its values"
    add("--classes", type=count, default=0, metavar="N", help=text)
    add("--batch-size", type=_size, default=0, help="rows of a request, or auto: the most it takes, up to 32")
    add("--block-rows", type=positive, default=1024, help="rows of a part of the output (default 1024)")
    add("--actors", type=count, default=0, help="processes of Ray that work; 0: this process (default)")
    add("--gpus", type=from_zero, default=0.0, help="GPUs of an actor")
    add(
        "--on-error",
        choices=("row", "fail"),
        default="row",
        help="keep rows that fail, or fail with the first",
    )
    add("--resume", action="store_true", help="go on with a run that was cut off")
    add("--json", action="store_true", help="print the summary as an object")
    return parser


def _size(text: str) -> int:
    return 0 if text == "auto" else count(text)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    from nereid.offline import tape_rows
    from nereid.offline.blocks import blocks, open_source
    from nereid.offline.output import Output
    from nereid.offline.run import kept

    job = _job(arguments)
    source = open_source(arguments.input, arguments.format, arguments.model)
    every = blocks(source, arguments.block_rows)
    output = Output.open(arguments.output)
    about = {"input": source.url, "format": source.format, "block_rows": arguments.block_rows}
    if source.format == "tape":  # which may have other rows today
        about["digest"] = blake2b(repr(every).encode(), digest_size=16).hexdigest()
        tell(tape_rows.troubles(source.paths, arguments.model))
    left = output.begin({**job._asdict(), **about, "blocks": len(every)}, every, arguments.resume)
    before = kept(output, [block for block in every if block not in left])
    started = time.monotonic()
    try:
        rows, failed = _run_parts(arguments, job, source, output, left, len(every))
    except BaseException:
        output.give_up()
        raise
    output.finish(every)
    return {
        "output": arguments.output,
        "rows": rows,
        "failed": failed,
        "parts": len(every),
        "kept_parts": before.parts,
        "kept_rows": before.rows,
        "kept_failed": before.failed,
        "seconds": round(time.monotonic() - started, 3),
    }


def _run_parts(
    arguments: argparse.Namespace,
    job: "Job",
    source: "Source",
    output: "Output",
    left: "Sequence[Block]",
    parts: int,
) -> tuple[int, int]:
    """Write the parts that are left; return how many rows they have, and how many of them failed."""
    rows = failed = 0
    with Shown(Console(stderr=True), arguments.model, "parts") as shown:
        shown.tick("loading", parts - len(left), parts)
        for number, done in enumerate(_work(arguments, job, source, output, left) if left else (), 1):
            rows, failed = rows + done["rows"], failed + done["failed"]
            shown.tick("running", parts - len(left) + number, parts, _text(rows, failed))
    return rows, failed


def _job(arguments: argparse.Namespace) -> "Job":
    from nereid.offline.execution import Job

    return Job(
        tuple(each if "://" in each else str(Path(each).absolute()) for each in arguments.repository),
        arguments.model,
        arguments.version,
        _columns(arguments.map),
        tuple(arguments.keep),
        tuple(arguments.outputs),
        arguments.classes,
        arguments.batch_size,
        arguments.on_error == "fail",
    )


def _work(
    arguments: argparse.Namespace, job: "Job", source: "Source", output: "Output", left: "Sequence[Block]"
) -> Iterator[Mapping[str, int]]:
    if arguments.actors:
        from nereid.offline import write_parts

        places = source.url, source.format, output.url
        yield from write_parts(job._asdict(), places, left, arguments.actors, arguments.gpus)
        return
    from nereid.offline.run import here

    for done in here(job, source, output, left):
        yield done._asdict()


def _columns(pairs: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    from nereid.offline.blocks import InputError

    found = {name: tuple(columns.split(",")) for name, _, columns in (pair.partition("=") for pair in pairs)}
    if not all(name and all(columns) for name, columns in found.items()):
        raise InputError("--map takes INPUT=COLUMN, or INPUT=COLUMN,COLUMN")
    return found


def _text(rows: int, failed: int) -> str:
    return f"{rows} rows" + (f", {failed} failed" if failed else "")


def _sentence(summary: Mapping[str, Any]) -> str:
    rows, seconds = summary["rows"], summary["seconds"]
    text = f"{_text(rows, summary['failed'])} in {seconds:.1f} s ({rows / max(seconds, 1e-9):.0f} a second)"
    there = _text(summary["kept_rows"], summary["kept_failed"])
    kept = f", of which {summary['kept_parts']} were there ({there})" if summary["kept_parts"] else ""
    why = "; the column 'error' says why" if summary["failed"] or summary["kept_failed"] else ""
    parts = "1 part" if summary["parts"] == 1 else f"{summary['parts']} parts"
    return f"{summary['output']}: {text}; {parts}{kept}{why}"
