"""The record of a running server, by which this user's commands find it."""

from pathlib import Path

import msgspec

from app.core.encoding import to_json
from app.core.private_files import private_directory, private_root
from app.core.processes import process


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


def write_record(record: ServerRecord) -> Path:
    """Write the record of this process; return its file, which the process removes when it ends.

    Those of servers that could not remove theirs are removed.

    Raises:
        OSError: the private directory cannot be made, or others may enter it.
    """
    directory = _directory()
    private_directory(str(directory))
    path = directory / f"{record.pid}.json"
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.format(to_json(record)))
    draft.replace(path)
    running_servers()
    return path


def running_servers() -> list[ServerRecord]:
    """Return the records of this user's servers that still run, the latest first; remove the others."""
    found = []
    for path in _directory().glob("*.json"):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=ServerRecord)
        except (OSError, msgspec.DecodeError):
            continue  # it has just ended, or is of another version
        if birth_of(record.pid) == record.birth:
            found.append(record)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda record: -int(record.birth))


def birth_of(pid: int) -> str:
    """Return when a process began, in ticks since the machine's start; "" when there is no such process."""
    found = process(pid)
    return "" if found is None else str(found.started)


def _directory() -> Path:
    return Path(private_root(), "servers")
