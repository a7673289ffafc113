"""`nereid status`: the processes, models and addresses of a running server."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.commands.columns import columns
from app.commands.servers import Api, Unanswered, add_token, api_of, find_server, server_parser
from app.console.server_record import ServerRecord
from app.core.processes import arguments, descendants

_ABOUT: Final = "Print addresses, models and processes of a running server of this user."
_EXAMPLE: Final = "example: nereid status --pid=4711"
_TITLE: Final = 60


class Process(NamedTuple):
    """A process of the server, with its resident memory in MiB."""

    pid: int
    memory: int
    title: str


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status: 0 for a server that is ready."""
    parser = server_parser("status", _ABOUT, _EXAMPLE)
    add_token(parser)
    options = parser.parse_args(argv)
    server = find_server(options.pid)
    if server is None:
        return 1
    api = api_of(server, options)
    state = _state(api)
    print(f"Nereid {server.version}, process {server.pid}: {state}")
    for title, text in _addresses(server):
        print(f"  {title:<10} {text}")
    print()
    _print_models(api)
    print()
    rows = [("pid", "MiB", "process"), *((str(p.pid), str(p.memory), p.title) for p in processes(server.pid))]
    print(columns(rows))
    return 0 if state == "ready" else 1


def _addresses(server: ServerRecord) -> Iterator[tuple[str, str]]:
    named = {"HTTP": server.http, "gRPC": server.grpc, "Metrics": server.metrics}
    yield from ((title, text) for title, text in named.items() if text)
    yield "Models", ", ".join(server.repositories)
    yield "Data plane", server.data_plane
    yield "Ray", f"{server.ray} ('nereid env' prints how to reach it)"
    if server.dashboard:
        yield "", f"{server.dashboard} is its dashboard"
    if server.log:
        yield "Ray's log", server.log


def _state(api: Api) -> str:
    try:
        api.ask("GET", "/v2/health/ready")
    except Unanswered as error:
        return f"not ready ({error})"
    return "ready"


def _print_models(api: Api) -> None:
    try:
        index = json.loads(api.ask("POST", "/v2/repository/index"))
    except (Unanswered, ValueError) as error:
        print(f"no list of models: {error}")
        return
    rows = [("model", "version", "state", "reason"), *map(_model_row, index)]
    print(columns(rows))


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    reason = (str(model.get("reason", "")).strip().splitlines() or [""])[0]
    return model["name"], model.get("version", "") or "-", model.get("state", "") or "not loaded", reason


def processes(pid: int) -> list[Process]:
    """Return a process and all that it has started, directly or not, by pid."""
    return [_process(each) for each in sorted([pid, *(below.pid for below in descendants(pid))])]


def _process(pid: int) -> Process:
    words = arguments(pid)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        words[0] = words[0].rpartition("/")[2]
    except (OSError, IndexError):
        return Process(pid, 0, "ended")
    return Process(pid, pages * os.sysconf("SC_PAGE_SIZE") >> 20, " ".join(words).strip()[:_TITLE])
