"""Settings of the tape, which records requests and their answers."""

import os
import re
from typing import Annotated as A
from typing import Final

import msgspec

from app.core.files.private_files import private_directory
from app.settings.flag import parsers
from app.settings.flag.flags import Flag

_AGE: Final = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE_S: Final = 7 * 86400.0


def _directory(path: str) -> str:
    """Return the absolute path of `--tape`, which can be written."""
    found = parsers.absolute(path)
    try:
        if found and not os.path.isdir(found):
            private_directory(found)
        if found and not os.access(found, os.W_OK | os.X_OK):
            raise ValueError(f"--tape: '{path}': Permission denied")
    except OSError as error:
        raise ValueError(f"--tape: '{path}': {error.strerror or error}") from None
    return found


def _age(text: str) -> float:
    """Return the seconds of `--tape-max-age`."""
    match = _AGE.fullmatch(text)
    if text and match is None:
        raise ValueError(f"--tape-max-age: expected seconds or a duration like 12h or 7d, got '{text}'")
    return _AGE_S if match is None else float(match["number"]) * _SECONDS[match["unit"]]


class TapeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and what an ingress records."""

    directory: A[
        str,
        Flag(
            "tape",
            "Directory, on every node, for recorded requests and their answers; without it none are.",
            parse=_directory,
        ),
    ] = ""
    rate: A[
        float,
        Flag(
            "tape_rate",
            "Share of requests that is recorded where a model's tape.yaml names none; with 0 nothing is of "
            "models without one.",
            low=0,
            high=1,
        ),
    ] = 0.05
    max_bytes: A[
        int, Flag("tape_max_bytes", "Maximum bytes of the tape on a node; the oldest go first.", low=1 << 20)
    ] = 10 << 30
    max_age_s: A[
        float,
        Flag(
            "tape_max_age",
            "Age at which recorded requests are removed: seconds, or 12h, 7d (the default) and so on.",
            parse=_age,
        ),
    ] = _AGE_S
    bytes_per_s: A[
        int,
        Flag(
            "tape_rate_limit",
            "Maximum bytes a second that an ingress replica records; more are dropped and counted; 0 for no "
            "limit.",
            low=0,
        ),
    ] = 8 << 20
