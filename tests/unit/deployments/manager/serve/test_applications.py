"""Serve applications of model versions: names, listing, and deployment over a fake of Serve."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from ray import serve
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.identifiers import application_name, base_name
from app.ray_adapter.serve import applications as adapter
from app.ray_adapter.serve.replicas import ReplicaAddress
from deployments import stand_in
from deployments.manager.serve import applications
from deployments.manager.serve.applications import (
    ModelApplication,
    deploy,
    parse_application,
    update,
)
from deployments.manager.serve.replicas import ReplicaList
from deployments.spec import Description, ModelSpec
from tests.waiting import let_run, until

NAMES = [
    (("simple", 1, 1), "simple:1"),
    (("simple", 12, 3), "simple:12@3"),
    (("a:b", 0, 1), "a:b:0"),
    (("x:5@2", 7, 4), "x:5@2:7@4"),
    (("grow", 9_223_372_036_854_775_807, 2), "grow:9223372036854775807@2"),
]


@pytest.mark.parametrize(("parts", "name"), NAMES)
def test_application_names_round_trip(parts: tuple[str, int, int], name: str) -> None:
    model, version, generation = parts
    base = base_name(model, version)
    assert application_name(base, generation) == name
    assert ModelApplication(*parts, name, True).base == base
    assert parse_application(name) == parts


def test_namespaces_give_different_application_names() -> None:
    bases = [base_name(model, 1) for model in ("/a/b::simple", "/a/c::simple", "simple")]
    assert len(set(bases)) == 3
    for base in bases:
        assert "/" not in base
        assert parse_application(application_name(base, 2)) == ("simple", 1, 2)


@pytest.mark.parametrize(
    "name", ["nereid", "default", "simple", ":1", "simple:", "simple:x", "simple:1@", "a:1@x"]
)
def test_other_application_names_are_not_parsed(name: str) -> None:
    assert parse_application(name) is None


def serve_status(monkeypatch: pytest.MonkeyPatch, **found: tuple[str, dict[str, Any]]) -> None:
    listed = {
        name: SimpleNamespace(status=status, deployments=deployments)
        for name, (status, deployments) in found.items()
    }
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications=listed))


async def test_model_applications_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    running: Any = SimpleNamespace(replica_states={"RUNNING": 1})
    serve_status(
        monkeypatch,
        **{
            "nereid": ("RUNNING", {"ingress": running, "repository-manager": running}),
            "m:1": ("RUNNING", {"m": running}),
            "m:1@2": ("DEPLOYING", {"m": running}),
            "m:2": ("UNHEALTHY", {"m": running}),
            "m:3": ("DEPLOY_FAILED", {"m": running}),
            "m:4": ("DELETING", {}),
            "other:1": ("RUNNING", {"somebody": None, "else": None}),
        },
    )
    assert await applications.listed() == [
        ModelApplication("m", 1, 1, "m:1", True),
        ModelApplication("m", 1, 2, "m:1@2", True),
        ModelApplication("m", 2, 1, "m:2", True),
        ModelApplication("m", 3, 1, "m:3", False),
        ModelApplication("m", 4, 1, "m:4", False),
    ]


async def test_application_that_was_scaled_to_zero_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    states = SimpleNamespace(replica_states={"STARTING": 1})
    none = SimpleNamespace(replica_states={})
    serve_status(monkeypatch, **{"m:1": ("RUNNING", {"m": states}), "m:2": ("RUNNING", {"m": none})})
    assert [(found.version, found.empty) for found in await applications.listed()] == [(1, False), (2, True)]


async def test_running_replicas_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    states = SimpleNamespace(replica_states={"RUNNING": 2, "STARTING": 1})
    none = SimpleNamespace(replica_states={})
    serve_status(monkeypatch, nereid=("RUNNING", {"ingress": states, "idle": none}))
    assert await applications.running_replicas("nereid", "ingress") == 2
    assert await applications.running_replicas("nereid", "idle") == 0
    assert await applications.running_replicas("nereid", "gone") == 0
    assert await applications.running_replicas("gone", "ingress") == 0


async def test_failed_delete_is_only_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(name: str, kill: bool) -> None:
        raise TimeoutError("not deleted after 60s")

    monkeypatch.setattr(applications, "delete_application", delete)
    await applications.delete("m:1")
    assert "deleting application 'm:1'" in caplog.text


TWO_REPLICAS = text_format.Parse(
    'backend: "python" parameters { key: "ray_replicas" value { string_value: "2" } }', mc.ModelConfig()
)
SPEC = ModelSpec("m", 1, "", TWO_REPLICAS.SerializeToString(), "m:1", "", b"k" * 32)
WAITS = ("wait_for_ingress_deployment_creation", "wait_for_applications_running")


class FakeServe:
    """Lists the replicas and reports the status that the test sets; `deployed` are the applications run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deployed: list[str] = []
        self.status: Any = None
        self.message = ""
        self.own = "RUNNING"
        self.replicas: ReplicaList | None = None
        monkeypatch.setattr(applications, "replica_deployment", lambda: ("manager", "nereid"))
        monkeypatch.setattr(stand_in, "_modules", [__name__])
        monkeypatch.setattr(applications, "watch_replicas", self.listing)
        monkeypatch.setattr(applications, "_STATUS_S", 0.001)
        monkeypatch.setattr(serve, "run_many", self.run_many)
        monkeypatch.setattr(serve, "status", self.ask)

    @asynccontextmanager
    async def listing(self, deployment: str, application: str) -> AsyncIterator[ReplicaList]:
        assert (deployment, application) == ("m", "m:1")
        self.replicas = ReplicaList(SimpleNamespace(describe=SimpleNamespace(remote=self.describe)))
        yield self.replicas

    def run_many(self, targets: list[Any], **waits: bool) -> None:
        assert waits == dict.fromkeys(WAITS, False), "the next application could only start after the wait"
        self.deployed += [target.name for target in targets]

    def ask(self) -> Any:
        deployments = {"m": SimpleNamespace(message=self.message, replica_states={"RUNNING": 2})}
        found = SimpleNamespace(status=self.status, message="", deployments=deployments)
        own = {"nereid": SimpleNamespace(status=self.own)}
        return SimpleNamespace(applications=own if self.status is None else {**own, "m:1": found})

    def list_replicas(self, count: int) -> None:
        assert self.replicas is not None
        self.replicas.replace(tuple(ReplicaAddress(str(n), "", "", "") for n in range(count)))

    @staticmethod
    async def describe() -> bytes:
        return msgspec.msgpack.encode(Description(SPEC, load_seconds=7.0))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    return FakeServe(monkeypatch)


async def test_status_that_was_asked_before_is_not_given_to_a_later_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its application, started in between, would seem to be deleted."""
    asked: list[int] = []
    may_answer = threading.Event()

    def ask() -> dict[str, Any]:
        asked.append(len(asked))
        assert may_answer.wait(30)
        return {}

    monkeypatch.setattr(applications, "_STATUS_S", 0.001)
    monkeypatch.setattr(applications, "application_statuses", ask)
    statuses = applications._Statuses()
    first = statuses.poll()
    assert statuses.poll() is first, "not asked yet"
    await until(lambda: bool(asked))
    later = statuses.poll()
    may_answer.set()
    await asyncio.gather(first, later)
    assert len(asked) == 2


async def test_serve_configurations_are_made_one_at_a_time(
    fake: FakeServe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve fails to pickle request routers in two threads at once: of a load, an update, or a status."""
    begun, may_go = threading.Semaphore(0), threading.Event()

    def wait(*_: Any, **__: Any) -> Any:
        begun.release()
        assert may_go.wait(30)
        return SimpleNamespace(applications={})

    monkeypatch.setattr(serve, "run_many", wait)
    monkeypatch.setattr(serve, "status", wait)
    monkeypatch.setattr(applications, "update_replicas", accept_update)
    calls = (deploy(SPEC), deploy(SPEC), update(SPEC, SPEC), applications.listed())
    tasks = [asyncio.ensure_future(each) for each in calls]
    assert await asyncio.to_thread(begun.acquire, timeout=30)
    assert not await asyncio.to_thread(begun.acquire, timeout=0.05)
    may_go.set()
    for _ in calls[1:]:
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    for task in tasks:
        task.cancel()
    # A cancelled update undoes what it did: with Serve itself, if it were left to the end of the test.
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_cancelled_load_starts_nothing_after_its_deletion(
    fake: FakeServe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One load waits for the lock, one is being started: the deletion of either comes last."""
    done: list[str] = []
    begun, may_go = threading.Event(), threading.Event()

    def start(targets: list[Any], **_: Any) -> None:
        begun.set()
        assert may_go.wait(30)
        done.append(f"started {targets[0].name}")

    monkeypatch.setattr(serve, "run_many", start)
    monkeypatch.setattr(serve, "delete", lambda name, _blocking: done.append(f"deleted {name}"))
    monkeypatch.setattr(adapter, "_starting", lambda chosen: [])
    loads = [asyncio.create_task(deploy(SPEC))]
    assert await asyncio.to_thread(begun.wait, 30)
    loads.append(asyncio.create_task(deploy(SPEC)))
    await asyncio.sleep(0)
    for load in loads:
        load.cancel()
    await asyncio.wait(loads)
    deletions = [asyncio.create_task(applications.delete("m:1")) for _ in loads]
    await let_run()
    may_go.set()
    await asyncio.gather(*deletions)
    assert done == ["started m:1", "deleted m:1", "deleted m:1"]


async def accept_update(spec: ModelSpec) -> None:
    """Accept the update."""


async def test_update_returns_when_serve_reports_running(
    fake: FakeServe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applications, "update_replicas", accept_update)
    fake.status = "DEPLOYING"
    updating = asyncio.create_task(update(SPEC, SPEC))
    await until(lambda: bool(fake.deployed))
    await let_run()
    assert not updating.done()
    fake.status = "RUNNING"
    assert (await updating).load_seconds == 7.0


async def test_deploy_returns_when_all_replicas_are_listed(fake: FakeServe) -> None:
    fake.status = "DEPLOYING"
    deploying = asyncio.create_task(deploy(SPEC))
    await until(lambda: bool(fake.deployed))
    fake.list_replicas(1)
    await let_run()
    assert not deploying.done()
    fake.list_replicas(2)
    assert (await deploying).load_seconds == 7.0
    assert fake.deployed == ["m:1"]


async def test_replica_with_a_failed_load_is_described(fake: FakeServe) -> None:
    fake.status = "RUNNING"
    assert (await deploy(SPEC)).load_seconds == 7.0


@pytest.mark.parametrize("status", ["DEPLOY_FAILED", "DELETING", "NOT_STARTED"])
async def test_deploy_fails_when_serve_reports_failure(fake: FakeServe, status: str) -> None:
    fake.status, fake.message = status, "it died\nof a signal"
    with pytest.raises(InferError, match="the replica of model 'm' could not start: of a signal"):
        await deploy(SPEC)


@pytest.mark.parametrize("status", ["RUNNING", "DELETING"])
async def test_the_server_stops_once_its_own_application_ends(fake: FakeServe, status: str) -> None:
    fake.own = status
    assert await applications.stops() is (status == "DELETING")


async def test_deploy_says_how_a_replica_died(fake: FakeServe, monkeypatch: pytest.MonkeyPatch) -> None:
    def death(application: str) -> str:
        return f"process of {application}: exit code 3"

    monkeypatch.setattr(applications, "last_death", death)
    fake.status, fake.message = "DEPLOY_FAILED", "failed to start 1 times in a row. Error:\nActorDiedError()"
    with pytest.raises(InferError, match="'m' could not start: process of m:1: exit code 3"):
        await deploy(SPEC)
    for text, instance in (("", "m_0_0"), ('instance_group { name: "g" count: 2 }', "g_0")):
        config = text_format.Parse(f'backend: "python" {text}', mc.ModelConfig()).SerializeToString()
        with pytest.raises(InferError) as raised:
            await deploy(msgspec.structs.replace(SPEC, config=config))
        assert str(raised.value).startswith(f"Stub process '{instance}' is not healthy. The replica of model")


async def test_deploy_names_a_disk_that_is_full(fake: FakeServe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applications, "full_disk", lambda: "no space is left")
    fake.status, fake.message = "DEPLOY_FAILED", "The actor is dead: killed by the OOM killer"
    with pytest.raises(InferError, match="'m' could not start: no space is left"):
        await deploy(SPEC)


async def test_deploy_says_of_rays_message_what_is_so(fake: FakeServe) -> None:
    fake.status = "DEPLOY_FAILED"
    fake.message = "It died. Worker exit detail: Worker exits with connection error code 2. The OOM killer?"
    with pytest.raises(InferError, match="'m' could not start: its process ended by a signal "):
        await deploy(SPEC)


async def test_deploy_fails_when_the_application_is_deleted(fake: FakeServe) -> None:
    with pytest.raises(InferError, match="application 'm:1' was deleted"):
        await deploy(SPEC)


async def test_deploy_fails_when_serve_raises(fake: FakeServe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no such option")

    monkeypatch.setattr(serve, "run_many", refuse)
    with pytest.raises(InferError, match="no such option"):
        await deploy(SPEC)
