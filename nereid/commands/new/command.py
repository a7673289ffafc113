"""`nereid new`: a model's directory, made from what training has written, or from nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nereid.commands.new.made_tests import file_of, text_of
from nereid.commands.new.starts import Tensor, from_nothing, from_source, read_tensor
from nereid.migrate.plan import Item, MigratedModel, MigrationError, printable
from nereid.migrate.writing import write
from nereid_client.tools.arguments import command_parser

_ABOUT: Final = """Make the directory of a model: its configuration, its files (linked where the file system
can, otherwise copied), code where it needs some, and a test. Nothing of a file is executed or unpickled here,
but a TorchScript file is run on zeros."""
_EXAMPLE: Final = """examples:
  nereid new churn --from model.joblib          # scikit-learn; its loads execute the pickle
  nereid new net --from model.pt --input x:FP32:3,224,224
  nereid new mood --from ./distilbert-sst2      # a folder of Hugging Face: classifiers, encoders, llm
  nereid new mine --python                      # a Python model to begin with

ONNX, torch.export, OpenVINO, XGBoost, LightGBM, treelite, SavedModel and TensorRT say all of it themselves.
exit status: 0; 1 if no model can be made of it; 2 for a wrong command line."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = command_parser("nereid new", _ABOUT, _EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="of the model")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--from", type=Path, dest="source", metavar="PATH", help="a file or folder")
    start.add_argument("--python", action="store_true", help="a Python model that doubles its input")
    text = "the repository to put it into (model_repository)"
    parser.add_argument("--repository", type=Path, default=Path("model_repository"), metavar="DIR", help=text)
    add_inputs(parser)
    parser.add_argument("--copy", action="store_true", help="copy files that could be linked")
    given = parser.parse_args(argv)
    try:
        made = made_from(given.name, given.source, given.input)
        test = Item(file_of(given.name), content=text_of(made.config, given.source is None).encode())
        written = write(made._replace(items=(*made.items, test)), given.repository, given.copy)
    except MigrationError as error:
        print(f"nereid new: {printable(error)}", file=sys.stderr)
        return 1
    folder = given.repository / given.name
    print(f"{folder}: {written.files} files, {written.nbytes / 1e6:.1f} MB, {written.linked} of them links")
    for note in made.notes:
        print(f"  note: {note}")
    print(f"  check it:  nereid check {given.repository}")
    print(f"  test it:   python -m pytest {folder / file_of(given.name)}")
    print(f"  serve it:  nereid dev {given.repository}")
    return 0


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the argument for inputs that a file does not tell."""
    parser.add_argument(
        "--input",
        type=_tensor,
        action="append",
        default=[],
        metavar="NAME:TYPE:DIMS",
        help="of TorchScript: each input, its dimensions without that of the rows, e.g. x:FP32:3,224,224",
    )


def made_from(name: str, source: Path | None, inputs: Sequence[Tensor]) -> MigratedModel:
    """Return a model made of a file or folder, or of nothing.

    Raises:
        MigrationError: no model can be made of it.
    """
    return from_nothing(name) if source is None else from_source(name, source, inputs)


def _tensor(text: str) -> Tensor:
    try:
        return read_tensor(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no input: give NAME:TYPE:DIMS, e.g. x:FP32:3,224"
        ) from None
