"""REST routes that consoles read: figures of all versions each second, log, traces, settings and machine."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, Field

from app.core.encoding import to_json
from app.core.errors import invalid_arg
from app.core.identifiers import name_of
from app.core.installed.installation import server_version
from app.core.observability.alerts import READ
from app.core.observability.counters import VersionCounters
from app.core.observability.recent_log import LEVELS, RecentLines
from app.core.observability.statistics import ReplicaReport
from app.core.system.lone_thread import LoneThread
from app.core.system.nodes import Machines, this_machine
from app.ingress.access.caller import GRANT
from app.ingress.rest.home.models import worded
from app.ingress.rest.home.remedies import explained
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.bodies import json_response, model_of
from app.ingress.rest.openapi.home import Surroundings
from app.ingress.service.interface import InferenceService
from app.ingress.service.overview import Overview, VersionRow
from app.ingress.tracing.observer import Observer
from app.native.choice import described
from app.routing.table import VersionEntry

_OVERVIEW: Final = "/v2/nereid/overview"
_COUNTERS: Final = "/v2/nereid/counters"
_LOGS: Final = "/v2/nereid/logs"
_TRACES: Final = "/v2/nereid/traces"
_SERVER: Final = "/v2/nereid/server"
_METRICS: Final = "/v2/nereid/metrics"
_READ_S: Final = 3.0
"""Time to read the machine, and to ask Ray for its nodes; those known before are told after it."""
_PROCESS: Final = secrets.token_hex(4)


Figures: Final = model_of(VersionCounters, "Figures")
Version: Final = model_of(
    VersionRow, "Version", model=str, word=str, look=str, remedy=str, figures=Figures | None
)
ServerOverview: Final = model_of(Overview, "ServerOverview", versions=list[Version])  # type: ignore[valid-type]  # made above


class Counters(BaseModel):
    """What the statistics of the protocol do not have, of one version, over all its replicas.

    `releases`: batches by why the dynamic batcher released them; `failures`: requests by their reason;
    `refusals`: those of an overloaded model by what limited their wait; `queue_age_ms`: of the request that
    waits for longest; `expected_wait_ms`: of the next one; `processor_s`: of processes of its own, 0 without.
    """

    name: str
    version: str
    releases: dict[str, int]
    failures: dict[str, int]
    refusals: dict[str, int]
    pending: int
    queue_age_ms: float
    expected_wait_ms: float
    restarts: int
    processor_s: float


class ModelCounters(BaseModel):
    """The ready versions of the model."""

    versions: list[Counters]


def add_overview_routes(api: RestApi, service: InferenceService, around: Surroundings) -> None:
    """Register the routes; who may see statistics may see them."""

    async def overview(request: Request) -> Response:
        """State and counters of all versions, as far as they changed since the answer with cursor `after`."""
        found = await service.overview(request.query_params.get("after", ""))
        rows = [_described(row, around.indexes) for row in found.versions]
        answer = {name: getattr(found, name) for name in found.__struct_fields__} | {"versions": rows}
        return json_response(to_json(answer))

    async def counters(request: Request) -> Response:
        """Why batches of `model` were released, what waits and why requests failed; `version` names one."""
        asked = request.query_params
        found = await service.counters(asked.get("model", ""), asked.get("version", ""))
        return json_response(to_json({"versions": [_counters(entry, report) for entry, report in found]}))

    api.add(RestRoute("statistics", "GET", _OVERVIEW, overview, response=ServerOverview))
    api.add(RestRoute("statistics", "GET", _COUNTERS, counters, response=ModelCounters))


def _counters(entry: VersionEntry, report: ReplicaReport) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": str(entry.version),
        "releases": report.releases,
        "failures": report.failures,
        "refusals": report.refusals,
        "pending": report.pending,
        "queue_age_ms": report.queue_age_ns / 1e6,
        "expected_wait_ms": report.expected_wait_ns / 1e6,
        "restarts": report.restarts,
        "processor_s": report.processor_s,
    }


def _described(row: VersionRow, with_reason: bool) -> dict[str, Any]:
    word, look = worded(row.state, row.reason, row.idle)
    reason, remedy = explained(row.state, row.reason) if with_reason else ("", "")
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    figures = None if row.figures is None else msgspec.to_builtins(row.figures)
    told = {"word": word, "look": look, "reason": reason, "remedy": remedy, "figures": figures}
    return {"model": name_of(row.name), **fields, **told}


class Line(BaseModel):
    """A line of the log; `at` is in Unix seconds, `place` the file and line of the program."""

    number: int
    at: float
    level: str
    place: str
    text: str


class Lines(BaseModel):
    """The last lines of the process that answers, after the one with the number `after`."""

    lines: list[Line]


class TraceSpan(BaseModel):
    """A request (parent 0) or a call that it made; stamps are microseconds since the trace began."""

    number: int
    parent: int
    model: str
    version: str
    request_id: str
    stamps: list[tuple[str, float]]


class RecentTrace(BaseModel):
    """A request that was traced, from its first activity to its last."""

    number: int
    at: float
    us: float
    spans: list[TraceSpan]


class RecentTraces(BaseModel):
    """The last traces of the process that answers, after the one with the number `after`."""

    traces: list[RecentTrace]


class SettingInEffect(BaseModel):
    """A flag with its value; `changed` says that it is not the default."""

    flag: str
    value: str
    changed: bool
    help: str


class NodeFacts(BaseModel):
    """A machine of the server; `here` says that the process that answers runs on it."""

    name: str
    id: str
    alive: bool
    here: bool
    head: bool
    processors: float
    gpus: float
    memory_bytes: float


class OwnMetrics(BaseModel):
    """Samples by the name of their metric, their labels beside `value`; `process` names who counted them."""

    process: str
    metrics: dict[str, list[dict[str, Any]]]


class ServerFacts(BaseModel):
    """The server; `machine` is that of the process that answers, `dashboard` and `grafana` are addresses.

    `missing` says of what there was no answer in time, and what is told in its place.
    """

    name: str
    version: str
    data_plane: str
    extensions: list[str]
    settings: list[SettingInEffect]
    machine: dict[str, Any]
    nodes: list[NodeFacts]
    dashboard: str
    grafana: str
    missing: list[str] = Field(default_factory=list)


class Insight(NamedTuple):
    """What the process knows of itself.

    Attributes:
        settings: as `SettingInEffect` has them.
        machine: reads the machine, by names of metrics; blocks.
        lines: the last ones of the log.
        samples: reads this process's metrics of `app.core.observability.alerts`, on its loop.
        machines: returns where the server runs; blocks.
        data_plane: see `is_native`.
        grafana: its address; "" if that was not told.
    """

    settings: Sequence[Mapping[str, Any]]
    machine: Callable[[], dict[str, Any]]
    lines: RecentLines
    samples: Callable[[], dict[str, Any]] = dict
    machines: Callable[[], Machines] = this_machine
    data_plane: str = "auto"
    grafana: str = ""


def add_insight_routes(api: RestApi, service: InferenceService, observer: Observer, insight: Insight) -> None:
    """Register the routes."""
    endpoints = _Endpoints(service, observer, insight)
    api.add(RestRoute("logging", "GET", _LOGS, endpoints.logs, response=Lines, whole=True))
    api.add(RestRoute("trace", "GET", _TRACES, endpoints.traces, response=RecentTraces))
    api.add(RestRoute("logging", "GET", _SERVER, endpoints.server, response=ServerFacts))
    api.add(RestRoute("logging", "GET", _METRICS, endpoints.metrics, response=OwnMetrics))


class _Endpoints:
    """The endpoints."""

    def __init__(self, service: InferenceService, observer: Observer, insight: Insight) -> None:
        self._service = service
        self._observer = observer
        self._insight = insight
        self._machine = LoneThread("machine")
        self._nodes = LoneThread("nodes")
        self._known: Machines | None = None

    async def logs(self, request: Request) -> Response:
        """The last lines of the log of this process, of `level` (debug, info, warning, error) and above."""
        level = request.query_params.get("level", "debug")
        if level not in LEVELS:
            raise invalid_arg(f"'level' is one of {', '.join(LEVELS)}")
        return json_response(
            to_json({"lines": self._insight.lines.read(_number(request.query_params), level)})
        )

    async def traces(self, request: Request) -> Response:
        """The last traces of this process; for 5 s from now on up to ten requests a second are traced."""
        found = self._observer.recent_traces(_number(request.query_params))
        if (grant := GRANT.get()) is not None:
            found = [trace for trace in found if grant.permits(trace.spans[0].model)]
        return json_response(to_json({"traces": found}))

    async def metrics(self) -> Response:
        """The metrics that consoles make alerts of: those of this process, and what the manager tells it."""
        machine, _ = await self._read_machine()
        metrics = self._insight.samples() | {name: machine[name] for name in machine.keys() & READ}
        if (grant := GRANT.get()) is not None and not grant.for_all:
            metrics = {name: [*filter(grant.sees, samples)] for name, samples in metrics.items()}
        return json_response(to_json({"process": _PROCESS, "metrics": metrics}))

    async def server(self) -> Response:
        """Version, settings in effect, without secrets, and the machine's processors, memory and GPUs."""
        metadata, insight = self._service.server_metadata(), self._insight
        read = self._read_machine(), self._read_nodes()
        (machine, no_machine), (machines, no_nodes) = await asyncio.gather(*read)
        facts = {
            "name": metadata.name,
            "version": server_version(),
            "data_plane": described(insight.data_plane),
            "extensions": list(metadata.extensions),
            "settings": insight.settings,
            "machine": machine,
            "nodes": [node._asdict() for node in machines.nodes],
            "dashboard": machines.dashboard,
            "grafana": insight.grafana,
            "missing": [*filter(None, (no_machine, no_nodes))],
        }
        return json_response(to_json(facts))

    async def _read_machine(self) -> tuple[dict[str, Any], str]:
        """Return the machine's metrics, and why they are not there; a driver may hang."""
        try:
            return await self._machine.run(self._insight.machine, _READ_S), ""
        except Exception as error:
            return {}, f"processors, memory and GPUs of the machine: {error or type(error).__name__}"

    async def _read_nodes(self) -> tuple[Machines, str]:
        """Return the server's nodes, as far as they are known, and why not all are; Ray may not answer."""
        try:
            self._known = await self._nodes.run(self._insight.machines, _READ_S)
            return self._known, ""
        except Exception as error:
            told = "those shown answered before" if self._known else "the one that answers is shown alone"
            why = f"nodes of the cluster ({told}): {error or type(error).__name__}"
            return self._known or this_machine(), why


def _number(given: Mapping[str, str]) -> int:
    text = given.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise invalid_arg("'after' is the number of a line or trace")
    return int(text)
