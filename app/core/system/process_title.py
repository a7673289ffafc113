"""The title of a process, as `ps` shows it."""

import ctypes
import os
from typing import Final

from app.core.system.processes import stat_fields

_STARTS: Final = 46
"""The field `arg_start` of /proc/PID/stat, the 48th of proc(5), and the next, `arg_end`."""
_PR_SET_NAME: Final = 15


def set_title(text: str) -> None:
    """Write a title over this process's arguments, as much of it as they have room for."""
    title = text.encode(errors="replace")
    fields = stat_fields(os.getpid())
    start, end = int(fields[_STARTS]), int(fields[_STARTS + 1])
    if 0 < start < end:
        shown = title[: end - start - 1]
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title[:15], 0, 0, 0)
