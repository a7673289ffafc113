"""Models that load and unload others while they load or execute: deadlocks are refused."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from app.core.encoding import to_msgpack
from app.core.errors import InferError, internal
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from deployments.manager.serve import applications
from deployments.spec import Description, ModelSpec
from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, states
from tests.waiting import until

Initialize = Callable[[], Awaitable[None]]
WHY = "; a model that waits for its own load or unload, directly or through others, would wait for ever"


@pytest.fixture
def initialize(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Initialize]:
    """The `initialize` of models by name; an exception fails the load."""
    work: dict[str, Initialize] = {}
    deploy = bench.serve.deploy

    async def deploying(spec: ModelSpec) -> Description:
        try:
            if spec.name in work:
                await work[spec.name]()
        except InferError as error:
            raise internal(error.message) from error
        return await deploy(spec)

    monkeypatch.setattr(applications, "deploy", deploying)
    return work


def loads(made: RepositoryManager, requester: str, name: str) -> Initialize:
    return lambda: made.load(LoadRequest(name, requester=requester))


async def explicit(bench: Bench, *names: str, **settings: int) -> RepositoryManager:
    for name in "abcd":
        bench.add(name)
    return await bench.start_explicit(*names, **settings)


async def test_models_that_load_each_other_fail(bench: Bench, initialize: dict[str, Initialize]) -> None:
    made = await explicit(bench)
    initialize.update(a=loads(made, "a", "b"), b=loads(made, "b", "c"), c=loads(made, "c", "a"))
    error = await load_error(made, "a")
    assert f"circular load of models: a -> b -> c -> a{WHY}" in error.message
    assert len(made.lifecycle.locks) == 0
    del initialize["c"]
    await load(made, "a")
    assert [row for row in await states(made) if row[2] == "READY"] == [
        (name, "1", "READY") for name in "abc"
    ]


async def test_model_that_loads_itself_fails(bench: Bench, initialize: dict[str, Initialize]) -> None:
    made = await explicit(bench)
    initialize["a"] = loads(made, "a", "a")
    assert f"circular load of models: a -> a{WHY}" in (await load_error(made, "a")).message


async def test_client_loads_of_both_models_of_a_cycle_end(
    bench: Bench, initialize: dict[str, Initialize]
) -> None:
    """Neither load was requested by the other model. Both are refused; one may meet the other's retry."""
    made = await explicit(bench)
    begun: set[str] = set()

    async def meet(requester: str, name: str) -> None:
        begun.add(requester)
        await until(lambda: len(begun) == 2)
        await made.load(LoadRequest(name, requester=requester))

    initialize.update(a=lambda: meet("a", "b"), b=lambda: meet("b", "a"))
    outcomes = await asyncio.wait_for(
        asyncio.gather(made.load(LoadRequest("a")), made.load(LoadRequest("b")), return_exceptions=True), 10
    )
    assert [type(outcome) for outcome in outcomes] == [InferError, InferError], outcomes
    assert any("circular load of models: " in str(outcome) for outcome in outcomes), outcomes
    assert len(made.lifecycle.locks) == 0


async def test_client_and_model_may_load_the_same_model(
    bench: Bench, initialize: dict[str, Initialize]
) -> None:
    """No cycle: one waits for the other."""
    made = await explicit(bench)
    initialize["a"] = loads(made, "a", "b")
    bench.serve.gates["b"] = asyncio.Event()
    loading = asyncio.gather(load(made, "b"), load(made, "a"))
    await until(lambda: made.lifecycle.locks.users("b") == 2)
    bench.serve.gates["b"].set()
    await loading
    assert [row for row in await states(made) if row[2]] == [("a", "1", "READY"), ("b", "1", "READY")]


async def test_loads_that_wait_for_others_free_their_slots(
    bench: Bench, initialize: dict[str, Initialize]
) -> None:
    made = await explicit(bench, model_load_thread_count=1)
    initialize.update(a=loads(made, "a", "b"), b=loads(made, "b", "c"))
    gate = bench.serve.gates["d"] = asyncio.Event()
    first = asyncio.create_task(load(made, "d"))
    await until(lambda: bench.serve.loading == 1)
    waiting = [asyncio.create_task(load(made, name)) for name in "ca"]  # c has its lock, but no load slot
    await until(lambda: made.lifecycle.locks.users("a") == 1)
    assert bench.serve.deployed == ["d:1"]
    gate.set()
    await asyncio.gather(first, *waiting)
    assert bench.serve.most_loading == 1
    assert {row[2] for row in await states(made)} == {"READY"}


async def test_model_reloaded_by_a_model_it_loads_fails(
    bench: Bench, initialize: dict[str, Initialize]
) -> None:
    """The new version does not wait for the old one, whose request loads a model."""
    made = await explicit(bench, "a")
    config = '{"backend": "identity", "max_batch_size": 2}'
    initialize["b"] = lambda: made.load(LoadRequest("a", config, requester="b"))
    await asyncio.wait_for(made.load(LoadRequest("b", requester="a:1")), 60)
    assert {"a:1@2", "b:1"} == set(made.lifecycle.loaded)


async def test_model_unloaded_by_a_model_it_loads_fails(
    bench: Bench, initialize: dict[str, Initialize], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can end only when its request, which loads a model, is answered."""
    made = await explicit(bench, "a", "c")
    answered = asyncio.Event()
    delete = applications.delete

    async def draining(application: str, kill: bool = False) -> None:
        if application == "a:1":
            await answered.wait()
        await delete(application)

    monkeypatch.setattr(applications, "delete", draining)

    async def unload_both() -> None:
        await made.unload("a", False, "b")
        await made.unload("c", False, "b")

    initialize["b"] = unload_both
    await asyncio.wait_for(made.load(LoadRequest("b", requester="a:1")), 60)
    assert bench.serve.deleted == ["c:1"]
    answered.set()
    await until(lambda: bench.serve.deleted == ["c:1", "a:1"])


async def test_model_loads_a_model_that_is_being_unloaded(
    bench: Bench, initialize: dict[str, Initialize], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client unloads it, and its last request loads it."""
    made = await explicit(bench, "a")
    refused: list[InferError] = []
    delete = applications.delete

    async def draining(application: str, kill: bool = False) -> None:
        refused.append(await load_error_of(made.load(LoadRequest("a", requester="a:1"))))
        await delete(application)

    monkeypatch.setattr(applications, "delete", draining)
    await asyncio.wait_for(made.unload("a"), 60)
    assert refused[0].message == f"circular load of models: a -> a{WHY}"


async def load_error_of(work: Awaitable[None]) -> InferError:
    with pytest.raises(InferError) as caught:
        await asyncio.wait_for(work, 60)
    return caught.value


async def test_load_of_an_unknown_model_waits_for_nothing(bench: Bench) -> None:
    made = await explicit(bench)
    await made.unload("", False)
    assert len(made.lifecycle.locks) == 0


async def test_a_load_that_comes_by_msgpack_is_as_one_that_ray_brings(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start(model_control_mode="explicit")
    asked = msgspec.msgpack.decode(to_msgpack(LoadRequest("m", requester="other")))
    await made.load(asked)
    assert await states(made) == [("m", "1", "READY")]
