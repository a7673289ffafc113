"""What consoles read: overview, log, traces, settings and machine."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from app.core.observability.alerts import READ
from app.core.observability.counters import VersionCounters
from app.core.observability.durations import FINE_S
from app.core.observability.live_settings import LiveSettings
from app.core.observability.recent_log import RecentLines
from app.core.system.nodes import Machines, Node
from app.ingress.metrics.machine import Machine
from app.ingress.rest.openapi import insight
from app.ingress.rest.openapi.insight import Insight
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.service.overview import Overview, VersionRow
from app.ingress.tracing.observer import Observer
from app.routing.table import UNLOADED
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.running_fronts import Fronts, Running
from tests.waiting import until


class Service(FakeService):
    """Has versions in several states."""

    async def overview(self, cursor: str) -> Overview:
        rows = [
            VersionRow("/space::m", "1", "READY", idle=True, figures=VersionCounters(1.0)),
            VersionRow("gone", "1", "UNAVAILABLE", UNLOADED),
            VersionRow("bad", "", "UNAVAILABLE", "No module named 'x'"),
        ]
        return Overview(f"{cursor}+", 2.0, True, FINE_S, rows)


@pytest.fixture
def running(fronts: Fronts) -> Iterator[Running]:
    with fronts(service=Service()) as running:
        yield running


def get(running: Running, path: str) -> Any:
    with urlopen(f"http://{running.http}{path}", timeout=20) as answer:
        return json.loads(answer.read())


def test_overview_says_states_in_words_and_what_to_do(running: Running) -> None:
    found = get(running, "/v2/nereid/overview?after=x.1")
    assert found["cursor"] == "x.1+" and found["names"] is None
    idle, gone, bad = found["versions"]
    assert (idle["word"], idle["look"], idle["model"], idle["name"]) == ("Idle", "off", "m", "/space::m")
    assert idle["figures"]["ok"] == 0 and gone["figures"] is None
    assert (gone["word"], gone["look"]) == ("Not loaded", "off")
    assert (bad["look"], bad["reason"]) == ("bad", "No module named 'x'")
    assert "requirements.txt" in bad["remedy"]


def test_reasons_stay_behind_the_header_of_the_index(fronts: Fronts) -> None:
    with fronts(service=Service(), http_restricted_api=["model-repository:admin=key"]) as running:
        found = get(running, "/v2/nereid/overview")["versions"]
        assert {row["reason"] + row["remedy"] for row in found} == {""}


def test_server_tells_its_settings_and_machine(running: Running) -> None:
    found = get(running, "/v2/nereid/server")
    flags = {each["flag"]: each["value"] for each in found["settings"]}
    assert flags["--http-port"] == str(running.http_port)
    assert found["machine"]["nv_cpu_memory_total_bytes"][0]["value"] > 0


def test_devices_are_not_read_on_the_loop(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[object] = []

    def read(_: Machine) -> list[Metric]:
        loops.append(asyncio._get_running_loop())
        return [GaugeMetricFamily("nv_gpu_memory_used_bytes", "", 7)]

    monkeypatch.setattr(Machine, "read", read)
    assert get(running, "/v2/nereid/metrics")["metrics"]["nv_gpu_memory_used_bytes"] == [{"value": 7}]
    assert loops == [None]


@pytest.mark.parametrize(
    "path", ["logs?after=-1", "logs?level=loud", "traces?after=x", "logs?after=" + "9" * 30]
)
def test_what_is_no_number_or_level_is_refused(running: Running, path: str) -> None:
    with pytest.raises(HTTPError) as refused:
        get(running, f"/v2/nereid/{path}")
    with refused.value as error:
        assert error.code == 400


def test_log_and_traces_are_read(running: Running) -> None:
    assert get(running, "/v2/nereid/logs?after=5&level=error") == {"lines": []}
    assert get(running, "/v2/nereid/traces") == {"traces": []}


def test_nodes_and_metrics_for_alerts_are_told(running: Running) -> None:
    (node,) = get(running, "/v2/nereid/server")["nodes"]
    assert node["alive"] and node["here"] and node["processors"] >= 1
    found = get(running, "/v2/nereid/metrics")
    assert found["process"] and found["metrics"].keys() <= READ


async def test_ray_that_does_not_answer_holds_up_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insight, "_READ_S", 0.05)
    read, write = os.pipe()
    cluster = Machines((Node("one"), Node("two")), "http://ray")
    answers: list[Callable[[], Machines]] = [lambda: cluster]
    api = build_rest_api(
        FakeService(),
        observer=Observer(LiveSettings()),
        insight=Insight([], dict, RecentLines(), machines=lambda: answers[0]()),
    )

    def hang() -> Machines:
        os.read(read, 1)
        return cluster

    async def facts() -> Any:
        (route,) = (each for each in api.routes if getattr(each, "path", "") == "/v2/nereid/server")
        answer = await cast(Any, route).endpoint()
        return json.loads(answer.body)

    assert (await facts())["missing"] == []
    answers[0] = hang
    for _ in range(20):
        found = await facts()
        assert [node["name"] for node in found["nodes"]] == ["one", "two"] and found["settings"] == []
        (missing,) = found["missing"]
        assert missing.startswith("nodes of the cluster (those shown answered before): ")
    assert sum(thread.name == "nodes" for thread in threading.enumerate()) == 1
    os.write(write, b"x")
    await until(lambda: all(thread.name != "nodes" for thread in threading.enumerate()))
    answers[0] = lambda: cluster
    assert (await facts())["missing"] == []
    for end in (read, write):
        os.close(end)


async def test_without_an_answer_of_ray_the_own_node_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Machines:
        raise RuntimeError("no cluster")

    api = build_rest_api(
        FakeService(),
        observer=Observer(LiveSettings()),
        insight=Insight([], fail_reading, RecentLines(), machines=fail),
    )
    (route,) = (each for each in api.routes if getattr(each, "path", "") == "/v2/nereid/server")
    found = json.loads((await cast(Any, route).endpoint()).body)
    assert [node["here"] for node in found["nodes"]] == [True] and found["machine"] == {}
    assert found["missing"] == [
        "processors, memory and GPUs of the machine: driver",
        "nodes of the cluster (the one that answers is shown alone): no cluster",
    ]


def fail_reading() -> dict[str, Any]:
    raise OSError("driver")
