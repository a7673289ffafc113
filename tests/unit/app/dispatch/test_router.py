"""The router over real channels: a new table opens pools, closes others, and in which order."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from app.dispatch.router import Router
from app.ensemble.runner import EnsembleRunner
from app.ray_adapter.serve import replicas
from app.routing import pools as pools_module
from app.routing.pools import Pools
from app.routing.table import IDLE, ModelState, NotLoaded, RoutingTable, VersionEntry
from app.routing.waiting_room import resolve_loaded
from tests.unit.app.routing.conftest import KEY, NODE, SETTINGS, Replica, Sink, Start, request
from tests.waiting import let_run, until


def entry(application: str, state: ModelState = ModelState.READY) -> VersionEntry:
    name, _, version = application.partition(":")
    return VersionEntry(name, int(version.partition("@")[0]), state, application=application)


def table(number: int, *entries: VersionEntry) -> RoutingTable:
    return RoutingTable(number, True, entries)


def publish(application: str, *found: Replica) -> None:
    replicas.publish(application, {k: v for replica in found for k, v in replica.metadata().items()})


class FakeHandle:
    def __init__(self, application: str) -> None:
        self.application = application
        self.shut_down = threading.Event()

    def shutdown(self) -> None:
        self.shut_down.set()


class Handles:
    """Stands for the handles that make Serve tell us of replicas."""

    def __init__(self) -> None:
        self.made: list[FakeHandle] = []
        self.failures = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def follow(self, deployment: str, application: str) -> FakeHandle:
        assert self.go_on.wait(60)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no controller")
        self.made.append(FakeHandle(application))
        return self.made[-1]


@pytest.fixture
def handles() -> Handles:
    return Handles()


def pools(handles: Handles) -> Pools:
    return Pools(NODE, KEY, SETTINGS, handles.follow)


@asynccontextmanager
async def routing(handles: Handles, **parts: Any) -> AsyncIterator[Router]:
    """A router with these parts, which is closed in the end."""
    made = Router(pools(handles), **parts)
    yield made
    await made.close(0)
    await until(lambda: not made.pools._closing and not made.pools._watching)
    assert replicas._listeners == {}


@pytest.fixture
async def router(handles: Handles) -> AsyncIterator[Router]:
    async with routing(handles) as made:
        yield made


def send(router: Router, wanted: InferRequest, sink: Sink) -> None:
    router.resolve(wanted.model_name, wanted.model_version).target.submit(wanted, sink)


async def apply(router: Router, new: RoutingTable, application: str = "", *found: Replica) -> None:
    applying = asyncio.create_task(router.apply(new))
    await asyncio.sleep(0)
    if application:
        publish(application, *found)
    await asyncio.wait_for(applying, 60)


async def test_request_goes_to_the_version_of_the_table(router: Router, start: Start) -> None:
    (a,) = await start("a")
    assert router.table.number == 0
    await apply(router, table(1, entry("m:1")), "m:1", a)
    found = router.resolve("m")
    assert (found.version, router.available(found), router.table.number) == (1, True, 1)
    sink = Sink()
    send(router, request("x"), sink)
    await until(lambda: a.taken == 1)
    a.answer()
    await until(lambda: sink.by() == ["a"])
    assert sink.responses[0].id == "x"


async def test_in_flight_counts_unanswered_requests(router: Router, start: Start) -> None:
    (a,) = await start("a")
    await apply(router, table(1, entry("m:1"), VersionEntry("e", 1, ModelState.READY)), "m:1", a)
    assert router.in_flight() == []
    for _ in range(2):
        send(router, request(), Sink())
    assert [(found.name, count) for found, count in router.in_flight()] == [("m", 2)]
    await until(lambda: a.taken == 2)
    a.answer()
    await until(lambda: router.in_flight() == [])


async def test_submit_refuses_versions_without_a_replica(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools_module, "_CONNECT_S", 0.01)
    loading = entry("m:2", ModelState.LOADING)
    await apply(router, table(1, entry("m:1"), loading))
    for wanted, code, text in (
        (request(model="x"), ErrorCode.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        (request(version="2"), ErrorCode.UNAVAILABLE, "version 2 is not at ready state"),
        (request(), ErrorCode.UNAVAILABLE, "version 1 is not at ready state"),  # no replica is connected
    ):
        with pytest.raises(InferError, match=text) as caught:
            send(router, wanted, Sink())
        assert caught.value.code is code
    assert not router.available(router.resolve("m"))
    assert not router.available(loading)
    with pytest.raises(InferError, match="model 'm' version 2 is not served"):
        router.pool(loading)


async def test_a_refusal_says_what_the_manager_knows(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "_CONNECT_S", 0.01)
    found = entry("m:1")
    await apply(router, table(1, found))
    await apply(router, table(2, msgspec.structs.replace(found, reason="started again in 2 s")))
    with pytest.raises(InferError, match="'m' version 1 is not at ready state: started again in 2 s"):
        send(router, request(), Sink())
    assert router.trouble(found) == "started again in 2 s"


async def test_swap_opens_before_and_closes_after(router: Router, start: Start) -> None:
    old, new = await start("old", "new")
    await apply(router, table(1, entry("m:1")), "m:1", old)
    sink = Sink()
    send(router, request("in flight"), sink)
    await until(lambda: old.taken == 1)

    applying = asyncio.create_task(router.apply(table(2, entry("m:1@2"))))
    await let_run()
    assert router.table.number == 1, "the new table before what it adds is connected"
    send(router, request("before"), sink)
    await until(lambda: old.taken == 2)

    publish("m:1@2", new)
    await asyncio.wait_for(applying, 60)
    assert router.table.number == 2
    send(router, request("after"), sink)
    await until(lambda: new.taken == 1)
    assert old.server.connections, "closed while requests are in flight"
    old.answer()
    new.answer()
    await until(lambda: sink.by() == ["new", "old", "old"])
    await until(lambda: not old.server.connections)
    assert list(router.pools._pools) == ["m:1@2"]


async def test_submit_resolves_again_a_version_that_was_replaced(router: Router, start: Start) -> None:
    """A request may be decoded in a thread while its model is reloaded."""
    old, new = await start("old", "new")
    await apply(router, table(1, entry("m:1")), "m:1", old)
    resolved, sink = router.resolve("m"), Sink()
    await apply(router, table(2, entry("m:1@2")), "m:1@2", new)
    resolved.target.submit(request("x"), sink)
    await until(lambda: new.taken == 1)
    new.answer()
    await until(lambda: sink.by() == ["new"])


async def test_submit_refuses_a_version_that_was_unloaded(router: Router, start: Start) -> None:
    (a,) = await start("a")
    await apply(router, table(1, entry("m:1")), "m:1", a)
    resolved = router.resolve("m")
    await apply(router, table(2, entry("m:1", ModelState.UNAVAILABLE)))
    with pytest.raises(InferError, match="version 1 is not at ready state"):
        resolved.target.submit(request(version="1"), Sink())
    with pytest.raises(InferError, match="'m' has no available versions"):
        resolved.target.submit(request(), Sink())


async def test_submit_refuses_a_version_that_became_decoupled(router: Router, start: Start) -> None:
    old, new = await start("old", "new")
    await apply(router, table(1, entry("m:1")), "m:1", old)
    resolved = router.resolve("m")
    config = mc.ModelConfig(model_transaction_policy={"decoupled": True}).SerializeToString()
    decoupled = msgspec.structs.replace(entry("m:1@2"), config=config)
    await apply(router, table(2, decoupled), "m:1@2", new)
    with pytest.raises(InferError, match="version 1 is not at ready state"):
        resolved.target.submit(request(), Sink())


async def test_submit_runs_an_ensemble_by_the_newest_table(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mc.ModelConfig(ensemble_scheduling=mc.ModelEnsembling()).SerializeToString()
    ensemble = VersionEntry("e", 1, ModelState.READY, config=config)
    await apply(router, table(1, ensemble))
    submitted: list[VersionEntry] = []
    monkeypatch.setattr(EnsembleRunner, "start", lambda _, entry, *request: submitted.append(entry))
    reloaded = msgspec.structs.replace(ensemble)
    ensemble.target.submit(request(model="e"), Sink())
    await apply(router, table(2, reloaded))
    ensemble.target.submit(request(model="e"), Sink())
    assert [id(found) for found in submitted] == [id(ensemble), id(reloaded)]


async def test_table_applies_though_a_model_cannot_be_reached(
    router: Router, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools_module, "_CONNECT_S", 0.05)
    (a,) = await start("a")
    await apply(router, table(1, entry("m:1"), entry("lost:1")), "m:1", a)
    assert router.table.number == 1
    assert router.available(router.resolve("m"))
    assert not router.available(router.resolve("lost"))


async def test_kept_applications_keep_their_channels(router: Router, start: Start) -> None:
    a, b = await start("a", "b")
    await apply(router, table(1, entry("m:1")), "m:1", a)
    (channel,) = router.pool(entry("m:1")).channels
    await apply(router, table(2, entry("m:1"), entry("n:1")), "n:1", b)
    assert router.pool(entry("m:1")).channels == [channel]


async def test_handle_is_shut_down_with_its_application(
    router: Router, handles: Handles, start: Start
) -> None:
    (a,) = await start("a")
    await apply(router, table(1, entry("m:1")), "m:1", a)
    await until(lambda: "m:1" in router.pools._handles)
    await apply(router, table(2))
    assert await asyncio.to_thread(handles.made[0].shut_down.wait, 5)
    assert (router.pools._handles, router.pools._pools) == ({}, {})


async def test_handle_is_shut_down_when_its_application_closed_meanwhile(
    router: Router, handles: Handles, start: Start
) -> None:
    (a,) = await start("a")
    handles.go_on.clear()
    await apply(router, table(1, entry("m:1")), "m:1", a)
    await apply(router, table(2))
    handles.go_on.set()
    await until(lambda: len(handles.made) == 1)
    assert await asyncio.to_thread(handles.made[0].shut_down.wait, 5)
    assert router.pools._handles == {}


async def test_watching_is_retried_until_the_controller_is_back(
    router: Router, handles: Handles, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setattr(pools_module, "_WATCH_RETRY_S", 0.01)
    (a,) = await start("a")
    handles.failures = 2
    await apply(router, table(1, entry("m:1")), "m:1", a)
    await until(lambda: "m:1" in router.pools._handles)


async def test_replicas_of_unrouted_applications_are_not_stored(router: Router, start: Start) -> None:
    (a,) = await start("a")
    publish("stranger:1", a)
    await apply(router, table(1, entry("m:1")), "m:1", a)
    await apply(router, table(2))
    publish("m:1", a)
    assert replicas._listeners == {}
    await let_run()
    await until(lambda: not a.server.connections)


async def test_control_calls_reach_replicas_that_connect_later(handles: Handles, start: Start) -> None:
    a, b = await start("a", "b")
    router = Router(pools(handles))
    await apply(router, table(1, entry("m:1")), "m:1", a)
    for level in (1, 1, 2):
        router.pools.broadcast_control("log", level)
    await until(lambda: a.controls == [("log", 1), ("log", 2)])
    await apply(router, table(2, entry("m:1"), entry("m:2")), "m:2", b)
    await until(lambda: b.controls == [("log", 2)])
    await router.close(0)


async def test_close_waits_for_requests_in_flight(handles: Handles, start: Start) -> None:
    (a,) = await start("a")
    router = Router(pools(handles))
    await apply(router, table(1, entry("m:1")), "m:1", a)
    sink = Sink()
    send(router, request(), sink)
    await until(lambda: a.taken == 1)
    closing = asyncio.create_task(router.close(5))
    await let_run()
    assert not closing.done()
    a.answer()
    await asyncio.wait_for(closing, 60)
    assert sink.by() == ["a"]


def described() -> bytes:
    """A configuration that is complete without a load."""
    config = mc.ModelConfig(input=[mc.ModelInput(name="x")], output=[mc.ModelOutput(name="y")])
    return bytes(config.SerializeToString())


async def test_a_request_for_an_idle_version_waits_for_its_replica(handles: Handles, start: Start) -> None:
    (a,) = await start("a")
    demanded: list[str] = []

    async def demand(name: str) -> None:
        demanded.append(name)
        await apply(made, table(2, entry("m:1")), "m:1", a)

    idle = VersionEntry("m", 1, ModelState.READY, IDLE, config=described())
    async with routing(handles, demand=demand) as made:
        await made.apply(table(1, idle))
        assert made.available(idle)
        sink = Sink()
        send(made, request("x"), sink)
        await until(lambda: a.taken == 1)
        a.answer()
        await until(lambda: sink.by() == ["a"])
        assert demanded == ["m"]
        idle.target.submit(request("resolved before the load"), sink)
        await until(lambda: a.taken == 2)


async def test_nothing_loads_an_idle_version_where_all_are_loaded(router: Router) -> None:
    idle = VersionEntry("m", 1, ModelState.READY, IDLE, config=described())
    await router.apply(table(1, idle))
    assert not router.available(idle)
    with pytest.raises(InferError, match="not at ready state"):
        send(router, request(), Sink())


async def test_a_version_scaled_to_none_waits_for_a_replica(handles: Handles, start: Start) -> None:
    (a,) = await start("a")

    async def demand(name: str) -> None:
        publish("m:1", a)

    async with routing(handles, demand=demand) as router:
        await apply(router, table(1, entry("m:1")), "m:1", a)
        publish("m:1")
        asleep = msgspec.structs.replace(entry("m:1"), reason=IDLE)
        await apply(router, table(2, asleep))
        await until(lambda: not router.pool(asleep).channels)
        send(router, request("x"), Sink())
        await until(lambda: a.taken == 1)


async def test_a_version_whose_configuration_is_not_complete_is_resolved_after_its_load(
    handles: Handles, router: Router, start: Start
) -> None:
    (a,) = await start("a")
    await router.apply(table(1, VersionEntry("m", 1, ModelState.READY, IDLE)))
    with pytest.raises(NotLoaded):
        router.resolve("m")
    with pytest.raises(NotLoaded):
        await resolve_loaded(router, "m")

    async def demand(name: str) -> None:
        await apply(waits, table(2, entry("m:1")), "m:1", a)

    async with routing(handles, demand=demand) as waits:
        await waits.apply(table(1, VersionEntry("m", 1, ModelState.READY, IDLE)))
        assert (await resolve_loaded(waits, "m")).application == "m:1"
