"""Reading a model's file: treelite's parsers run in a process of their own, which the file cannot exhaust."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import treelite

from app.core.errors import InferError, invalid_arg
from backends.fil.formats import seems
from backends.fil.zeros import takes_zeros_for_missing, with_nan

_PARSER: Final = Path(__file__).with_name("parse.py")
_MEMORY: Final = 1 << 30
_MEMORY_PER_BYTE: Final = 16
"""Address space for each byte of the file: good files take up to 8, those of UBJSON and LightGBM most."""
_SECONDS: Final = 60
_BYTES_PER_SECOND: Final = 1 << 20
_MAX_TEXT: Final = 500
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Each thread of numpy's and scipy's libraries reserves address space."""
_NO_MEMORY: Final = ("bad_alloc", "expand buffer", "_M_replace_aux", "length_error")
_VERSION: Final = 12
"""Bytes of a checkpoint that say which version of treelite wrote it."""
_PLACE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""Time and line of treelite's source, before its text."""


def read_model(name: str, path: Path, model_type: str, allow_unknown_field: bool) -> treelite.Model:
    """Read a file by treelite.

    Args:
        name: of the model, for errors.
        path: the file.
        model_type: its format, a key of `FILES`.
        allow_unknown_field: whether XGBoost's JSON may have fields that treelite does not know.

    Raises:
        InferError: INVALID_ARG saying why the file is none of this format.
    """
    size = path.stat().st_size
    memory = _MEMORY + _MEMORY_PER_BYTE * size
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    limits = [str(allow_unknown_field).lower(), str(memory), str(seconds)]
    with _readable(path, model_type) as given:
        command = [sys.executable, "-P", str(_PARSER), model_type, str(given), *limits]
        environment = {**os.environ, **_ONE_THREAD}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    reason = (
        _cut_off(path, model_type, done.stdout) if done.returncode == 0 else _reason(done, memory, seconds)
    )
    if reason:
        raise _refused(name, path, model_type, reason)
    return treelite.Model.deserialize_bytes(done.stdout)


@contextmanager
def _readable(path: Path, model_type: str) -> Iterator[Path]:
    """Yield a file that says the same in a way that treelite knows."""
    text = path.read_bytes() if model_type == "lightgbm" else b""
    if not takes_zeros_for_missing(text):
        yield path
        return
    with NamedTemporaryFile() as file:
        file.write(with_nan(text))
        file.flush()
        yield Path(file.name)


def _cut_off(path: Path, model_type: str, checkpoint: bytes) -> str:
    """Return what tells that a file lacks its end, which treelite may not notice."""
    content = path.read_bytes() if model_type in ("lightgbm", "treelite_checkpoint") else b""
    if model_type == "lightgbm" and b"\ntree_sizes=" in content and b"\nend of trees" not in content:
        return "it is truncated: 'end of trees' is missing"
    own_version = content[:_VERSION] == checkpoint[:_VERSION]
    if model_type == "treelite_checkpoint" and own_version and len(content) < len(checkpoint):
        return f"it is truncated: {len(checkpoint) - len(content)} bytes are missing"
    return ""


def _reason(done: "subprocess.CompletedProcess[bytes]", memory: int, seconds: int) -> str:
    text = _PLACE.sub("", done.stdout.decode(errors="replace"))
    if done.returncode == -signal.SIGXCPU:
        return f"that takes longer than {seconds} s"
    if done.returncode != 1:
        return f"it ends the parser, with exit status {done.returncode}"
    if not text or any(sign in text for sign in _NO_MEMORY):
        return f"it asks for more than {memory >> 20} MiB"
    if "sax_parse" in text:
        return "it is damaged, or no UBJSON"
    return " ".join(text.split())[:_MAX_TEXT]


def _refused(name: str, path: Path, model_type: str, reason: str) -> InferError:
    with path.open("rb") as file:
        found = seems(file.read(512))
    hint = f" It seems to be of model_type '{found}'." if found and found != model_type else ""
    return invalid_arg(
        f"unable to load model '{name}': '{path}' cannot be read as {model_type}: {reason.rstrip('.')}.{hint}"
    )
