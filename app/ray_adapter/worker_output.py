"""The output of Ray's processes: lines of the server and its models go to the console, Ray's to a file.

Ray 2.60 prints the output of every worker in the driver, each line behind the name of its process, and the
controller of Serve alone has two lines for every model.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from logging.handlers import RotatingFileHandler
from typing import Any, Final

from app.core.files.private_files import private_directory, private_root

_REPLICA: Final = "ServeReplica:"
"""How the titles of Serve's replicas begin."""
_RAYS: Final = re.compile(
    r"((DEBUG|INFO|WARNING|ERROR|CRITICAL) |\[)?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,"
    r"|[IWEF]\d{4} \S+ +\d+ \S+\.cc:\d+\]"
)
"""How the log lines of Serve, of Ray and of the gRPC library in it begin."""
_OURS: Final = re.compile(r"([IWEF]\d{4} \S+|\d{4}-\d\d-\d\dT\S+Z [IWEF]) \d+ \S+\.py:\d+\]")
"""How the server's log lines begin (`app/core/observability/log.py`)."""
_RULE: Final = re.compile(r"\+-[-+]*-\+$")
"""A line of dashes of the table of models, which has three."""
_RULES: Final = 12
"""Rules of the tables at the end of the start: three of each of four."""
_MANAGER: Final = "ServeReplica:nereid:repository-manager"
_FILE_BYTES: Final = 16 << 20
_FILES_KEPT: Final = 16
_PROCESSES: Final = 4096
_HANDLER: Final = "ray_print_logs"
"""The name under which Ray prints workers' output, and removes the printer when it disconnects."""


class _RayLog(RotatingFileHandler):
    """A file whose disk may be full: what cannot be written is dropped, without a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing."""


def open_ray_log() -> logging.Handler:
    """Return a handler that writes to a file of this process in the user's private directory.

    The files of the last servers are kept; each is bounded, and so is its one predecessor.

    Raises:
        OSError: the directory cannot be made, or others may enter it.
    """
    directory = private_root() / "logs"
    private_directory(str(directory))
    earlier = sorted(directory.glob("ray-*.log*"), key=lambda path: path.stat().st_mtime)
    for path in earlier[: -_FILES_KEPT + 1]:
        path.unlink(missing_ok=True)
    handler = _RayLog(directory / f"ray-{os.getpid()}.log", maxBytes=_FILE_BYTES, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def divert_ray_output(handler: logging.Handler) -> "WorkerOutput":
    """Send what Ray and Serve log in this process and in the workers to a handler; print workers' own lines.

    Returns what prints them. Call it when Ray is connected.
    """
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as printers

    import_module("ray.serve")  # which configures its logger
    for name in ("ray", "ray.serve"):
        ray_logger = logging.getLogger(name)
        ray_logger.handlers = [handler]
        ray_logger.propagate = False
    output = WorkerOutput(handler)
    printers.remove_handler(_HANDLER)
    printers.add_handler(_HANDLER, output)
    worker.print_to_stdstream = lambda data, ignore_prefix: output(data)  # for messages of the raylet
    return output


class WorkerOutput:
    """Prints the lines of replicas and logs those of Ray.

    Args:
        rays: receives Ray's lines.

    Attributes:
        table_printed: set when the manager's tables at the end of the start were printed.
    """

    def __init__(self, rays: logging.Handler) -> None:
        self._rays = rays
        self.table_printed = threading.Event()
        self._rules = 0
        self._in_rays: dict[tuple[object, bool], bool] = {}
        """Whether the last line of each process belonged to Ray, by its id and whether it was on stderr."""

    def __call__(self, batch: Mapping[str, Any]) -> None:
        """Receive lines of one process, as Ray's log monitor sends them."""
        if batch.get("pid") == "autoscaler":  # every few seconds all that it thinks; Ray drops it too
            return
        title = str(batch.get("actor_name") or batch.get("task_name") or batch.get("pid"))
        stream = sys.stderr if batch.get("is_err") else sys.stdout
        lines = list(self._split(batch, title.startswith(_REPLICA)))
        for line in (line for ours, line in lines if ours):
            print(line, file=stream)
        stream.flush()
        if title == _MANAGER and not self.table_printed.is_set():
            self._rules += sum(_RULE.match(line) is not None for _, line in lines)
            if self._rules >= _RULES:
                self.table_printed.set()
        for line in (line for ours, line in lines if not ours):
            record = logging.LogRecord(title, logging.INFO, "", 0, line, None, None)
            self._rays.handle(record)

    def _split(self, batch: Mapping[str, Any], replica: bool) -> Iterator[tuple[bool, str]]:
        """Yield whether a line is the server's, and the line; one without a stamp goes with that before."""
        lines: Sequence[str] = batch.get("lines", ())
        process = (batch.get("pid"), bool(batch.get("is_err")))
        in_rays = self._in_rays.pop(process, False)
        for line in lines:
            in_rays = not replica or (not _OURS.match(line) and (in_rays or bool(_RAYS.match(line))))
            yield not in_rays, line
        self._in_rays[process] = in_rays
        if len(self._in_rays) > _PROCESSES:
            del self._in_rays[next(iter(self._in_rays))]
