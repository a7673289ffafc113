"""`nereid status`: the processes, models and addresses of a running server, and what they have to do."""

import argparse
import json
import os
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.core.system.processes import arguments, descendants
from nereid.commands.columns import columns
from nereid.commands.servers import Api, Unanswered, add_server, api_of, chosen_api, find_server
from nereid.commands.traffic import Counted, Traffic, Version, between, read
from nereid.console.server_record import ServerRecord
from nereid_client.tools.arguments import command_parser
from nereid_client.tools.digits import all_digits, four_digits

_ABOUT: Final = """Print addresses, models and processes of a running server; of each model the
requests of the last second, those that wait, and the 99th percentile of their durations, as the buckets of
the server's metrics tell it."""
_EXAMPLES: Final = """examples:
  nereid status --watch
  nereid status --server https://models.example:8000 --token-file token

exit status: 0 the server is ready; 1 it is not, or there is none; 2 wrong arguments"""
_TITLE: Final = 60
_LOOK_S: Final = 1.0
"""Of traffic that is counted."""
_WATCH_S: Final = 2.0
_HEAD: Final = ("model", "version", "state", "requests/s", "pending", "p99 ms", "reason")
_DASHBOARD: Final = "Dashboard"


class Process(NamedTuple):
    """A process of the server, with its resident memory in MiB."""

    pid: int
    memory: int
    title: str


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status: 0 for a server that is ready."""
    parser = command_parser("nereid status", _ABOUT, _EXAMPLES)
    add_server(parser)
    parser.add_argument("--watch", action="store_true", help="show it anew every two seconds, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print an object; with --watch one a line")
    options = parser.parse_args(argv)
    record = None if options.server else find_server(options.pid)
    if record is None and not options.server:
        return 1
    api = chosen_api(options) if record is None else api_of(record, options)
    assert api is not None
    looks = Looks(record or _elsewhere(api), api)
    report = looks.report(_LOOK_S)
    while options.watch:
        _show(report, options, redraw=sys.stdout.isatty())
        report = looks.report(_WATCH_S)
    _show(report, options)
    return 0 if report["state"] == "ready" else 1


def _show(report: Mapping[str, Any], options: argparse.Namespace, redraw: bool = False) -> None:
    if options.json:
        print(json.dumps(report, indent=None if options.watch else 1), flush=True)
        return
    print(("\x1b[H\x1b[J" if redraw else "") + screen(report), flush=True)


def _elsewhere(api: Api) -> ServerRecord:
    """Return what a server says of itself that is not this user's on this machine, as far as it does."""
    try:
        told = json.loads(api.ask("GET", "/v2/nereid/server"))
        settings = {each["flag"]: each["value"] for each in told["settings"]}
    except (Unanswered, ValueError, KeyError, TypeError):
        return ServerRecord(pid=0, birth="", version="", http=api.url)
    url = urllib.parse.urlsplit(api.url)
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    port = settings.get("--metrics-port") if settings.get("--allow-metrics") != "false" else None
    return ServerRecord(
        pid=0,
        birth="",
        version=told.get("version", ""),
        http=api.url,
        metrics=f"{url.scheme}://{host}:{port}/metrics" if port else "",
        repositories=tuple(filter(None, (settings.get("--model-repository"),))),
        data_plane=told.get("data_plane", ""),
    )


class Looks:
    """Looks at a server, each a report since the one before."""

    def __init__(self, server: ServerRecord, api: Api) -> None:
        self._server, self._api = server, api
        url = urllib.parse.urlsplit(server.metrics)
        self._metrics = self._api._replace(url=f"{url.scheme}://{url.netloc}" if url.netloc else "")
        self._path = url.path
        self._counted = self._look()
        self._at = time.monotonic()

    def _look(self) -> dict[Version, Counted] | str:
        """Return what the metrics count, or why that is not known."""
        if not self._metrics.url:
            return "the server gives none (--allow-metrics)"
        try:
            return read(self._metrics.ask("GET", self._path).decode())
        except (Unanswered, ValueError) as error:
            return str(error)

    def report(self, seconds: float) -> dict[str, Any]:
        """Return what is to be told, after so many seconds of traffic."""
        time.sleep(seconds)
        before, began = self._counted, self._at
        counted = self._look()
        self._counted, self._at = counted, time.monotonic()
        took = self._at - began
        known = isinstance(before, dict) and isinstance(counted, dict)
        traffic = between(before, counted, took) if known else {}  # type: ignore[arg-type]
        models, why_none = self._models(traffic)
        return {
            "version": self._server.version,
            "pid": self._server.pid or None,
            "state": _state(self._api),
            "addresses": dict(_addresses(self._server)),
            "models": models,
            "no_models": why_none,
            "no_figures": "" if isinstance(counted, dict) else counted,
            "processes": [process._asdict() for process in processes(self._server.pid)]
            if self._server.pid
            else [],
        }

    def _models(self, traffic: Mapping[Version, Traffic]) -> tuple[list[dict[str, Any]], str]:
        try:
            index = json.loads(self._api.ask("POST", "/v2/repository/index"))
        except (Unanswered, ValueError) as error:
            return [], str(error)
        return [_model(each, traffic) for each in index], ""


def _model(entry: Mapping[str, Any], traffic: Mapping[Version, Traffic]) -> dict[str, Any]:
    name, version = entry["name"], str(entry.get("version", ""))
    found = traffic.get((name, version))
    about = {
        "name": name,
        "version": version,
        "state": entry.get("state", ""),
        "reason": entry.get("reason", ""),
    }
    return {**about, **(asdict(found) if found is not None else {})}


def screen(report: Mapping[str, Any]) -> str:
    """Return a report as text."""
    process = f", process {report['pid']}" if report["pid"] else ""
    lines = [f"Nereid {report['version']}".rstrip() + f"{process}: {report['state']}"]
    lines += [f"  {title:<10} {text}" for title, text in _listed(report["addresses"])]
    lines.append("")
    if report["no_models"]:
        lines.append(f"no list of models: {report['no_models']}")
    else:
        lines.append(columns([_HEAD, *map(_model_row, report["models"])]))
    if report["no_figures"]:
        lines.append(f"no figures of requests: {report['no_figures']}")
    if rows := [(str(p["pid"]), str(p["memory"]), p["title"]) for p in report["processes"]]:
        lines += ["", columns([("pid", "MiB", "process"), *rows])]
    return "\n".join(lines)


def _model_row(model: Mapping[str, Any]) -> tuple[str, ...]:
    reason = (str(model["reason"]).strip().splitlines() or [""])[0]
    row = model["name"], model["version"] or "-", model["state"] or "not loaded"
    if "pending" not in model:
        return (*row, "", "", "", reason)
    failures = f" ({all_digits(model['failures_per_second'])} failed)" if model["failures_per_second"] else ""
    p99 = "" if model["p99_ms"] is None else four_digits(model["p99_ms"])
    return (*row, f"{all_digits(model['requests_per_second'])}{failures}", str(model["pending"]), p99, reason)


def _listed(addresses: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for title, text in addresses.items():
        yield "" if title == _DASHBOARD else title, text


def _addresses(server: ServerRecord) -> Iterator[tuple[str, str]]:
    named = {
        "HTTP": server.http,
        "gRPC": server.grpc,
        "Metrics": server.metrics,
        "Models": ", ".join(server.repositories),
        "Data plane": server.data_plane,
        "Ray": f"{server.ray} ('nereid env' prints how to reach it)" if server.ray else "",
    }
    yield from ((title, text) for title, text in named.items() if text)
    if server.dashboard:
        yield _DASHBOARD, f"{server.dashboard} is its dashboard"
    if server.log:
        yield "Ray's log", server.log


def _state(api: Api) -> str:
    try:
        api.ask("GET", "/v2/health/ready")
    except Unanswered as error:
        return f"not ready ({error})"
    return "ready"


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
