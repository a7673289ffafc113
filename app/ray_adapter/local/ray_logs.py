"""The log files of Ray's own processes."""

from pathlib import Path
from typing import Final

_LINES: Final = 5
_BYTES: Final = 64 << 10


def last_lines(directory: str, name: str) -> str:
    """Return the last lines of a process of Ray, each behind a line break; "" when it wrote none.

    Args:
        directory: the logs of a session.
        name: the process as its files name it (`raylet`).
    """
    for path in (Path(directory, f"{name}.err"), Path(directory, f"{name}.out")):
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            continue
        told = [line for line in lines if line.strip()]
        if told:
            return "".join(f"\n  {line[:400]}" for line in [f"({path})", *told[-_LINES:]])
    return ""
