"""The record of a running server, by which this user's commands find it."""

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from app.core.encoding import to_json
from app.core.files.private_files import private_directory, private_root
from app.core.system.processes import process
from app.core.whole_files import write_whole

_FOLDER: Final = "servers"
_SHARED: Final = "/tmp"
"""Looked into by every shell, whatever its TMPDIR."""
_SERVICE: Final = "/run/nereid"
"""Where the unit of systemd registers (RUNTIME_DIRECTORY), whose /tmp is its own."""


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself.

    Attributes:
        pid: the process to stop.
        birth: when the process began, in ticks since the machine's start: a pid is used again.
        version: of the server.
        http: address of the HTTP API; "" for none that is known.
        grpc: address of the gRPC API.
        metrics: address of the metrics.
        repositories: where its models are.
        data_plane: "native", or "python" with the reason.
        ray: address of Ray's cluster.
        dashboard: address of Ray's dashboard; "" without one.
        environment: variables with which Ray's commands reach its cluster.
        log: the file with the messages of Ray; "" when they are printed.
        ledger: directory of the cost ledger; "" for none that is known.
    """

    pid: int
    birth: str
    version: str
    http: str = ""
    grpc: str = ""
    metrics: str = ""
    repositories: tuple[str, ...] = ()
    data_plane: str = ""
    ray: str = ""
    dashboard: str = ""
    environment: dict[str, str] = {}
    log: str = ""
    ledger: str = ""


def write_record(record: ServerRecord) -> list[Path]:
    """Write the record of this process; return its files, which the process removes when it ends.

    There is one in each place where another shell may look: it may have another TMPDIR. Those of servers that
    could not remove theirs are removed.

    Raises:
        OSError: there is no such place: others may enter the private directories, or the disk is full.
    """
    written, faults = [], []
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    for parent in dict.fromkeys(filter(None, (tempfile.gettempdir(), _SHARED, given))):
        try:
            written.append(_write(private_root(parent) / _FOLDER, record))
        except OSError as error:
            faults.append(error)
    if not written:
        raise faults[0]
    running_servers()
    return written


def _write(directory: Path, record: ServerRecord) -> Path:
    private_directory(directory)
    path = directory / f"{record.pid}.json"
    write_whole(path, msgspec.json.format(to_json(record)))
    return path


def running_servers() -> list[ServerRecord]:
    """Return the records of this user's servers that still run, the latest first; remove the others."""
    found = {}
    for path in [path for directory in places() for path in directory.glob("*.json")]:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=ServerRecord)
        except (OSError, msgspec.DecodeError):
            continue  # it has just ended, or is of another version
        if birth_of(record.pid) == record.birth:
            found[record.pid] = record
        else:
            path.unlink(missing_ok=True)
    return sorted(found.values(), key=lambda record: -int(record.birth))


def places() -> list[Path]:
    """Return the directories that are looked into for servers."""
    parents = dict.fromkeys((tempfile.gettempdir(), _SHARED, _SERVICE))
    roots = [os.path.join(parent, f"nereid-{os.getuid()}") for parent in parents]
    return [Path(root, _FOLDER) for root in roots if not os.path.lexists(root) or _is_private(root)]


def _is_private(root: str) -> bool:
    try:
        private_directory(root)
    except OSError:  # it is another user's, who might have a client's token sent elsewhere
        return False
    return True


def birth_of(pid: int) -> str:
    """Return when a process began, in ticks since the machine's start; "" when there is no such process."""
    found = process(pid)
    return "" if found is None else str(found.started)
