"""What the replica answers to the process of its model, over a manager and replicas that are made up."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.ray_adapter.serve import replicas
from app.transport.channel.busy import BUSY
from deployments.model_process.requests import HostHandler
from deployments.spec import Description
from tests.unit.deployments.served_model_bench import CONFIG, model_spec
from tests.waiting import let_run, until


class Method:
    def __init__(self, cluster: "FakeCluster", name: str) -> None:
        self._cluster = cluster
        self._name = name

    def remote(self, *arguments: Any) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._cluster.calls.append((self._name, arguments, answer))
        return answer


class Manager:
    def __init__(self, cluster: "FakeCluster") -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Method:
        return Method(self._cluster, name)


class FakeCluster:
    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self.opened = 0
        self.fails = 0
        self.watched: list[tuple[str, str]] = []
        self.ended = 0

    def node_id(self) -> str:
        return "node"

    def open_manager(self, application: str) -> Manager:
        self.opened += 1
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no manager")
        return Manager(self)

    def watch_replicas(self, deployment: str, application: str) -> "FakeCluster":
        self.watched.append((deployment, application))
        return self

    def shutdown(self) -> None:
        self.ended += 1


Work = Callable[[HostHandler, FakeCluster], Any]


def run(work: Work, busy_s: float = 0.0) -> Any:
    async def main() -> Any:
        handler = HostHandler("nereid", lambda: busy_s)
        handler._cluster = cluster = FakeCluster()  # type: ignore[assignment]
        handler.begin()
        async with asyncio.timeout(10):
            return await work(handler, cluster)

    return asyncio.run(main())


async def called(handler: HostHandler, cluster: FakeCluster, name: str = "index") -> "asyncio.Task[Any]":
    task = asyncio.ensure_future(handler.control("manage", [name, [1, 2]]))
    number = len(cluster.calls)
    while len(cluster.calls) == number:
        await asyncio.sleep(0)
    return task


def test_calls_reach_the_manager_by_one_handle() -> None:
    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        for name in ("index", "load"):
            task = await called(handler, cluster, name)
            assert cluster.calls[-1][:2] == (name, (1, 2))
            cluster.calls[-1][2].set_result(name)
            assert await task == name
        assert cluster.opened == 1

    run(work)


@pytest.mark.parametrize("name", ["explain", "__class__", "shutdown", ""])
def test_other_methods_are_refused(name: str) -> None:
    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        with pytest.raises(InferError, match=f"models do not call '{name}'") as raised:
            await handler.control("manage", [name, []])
        assert raised.value.failure.code is ErrorCode.UNSUPPORTED and not cluster.calls

    run(work)


def test_unknown_verbs_and_requests_are_refused() -> None:
    async def work(handler: HostHandler, _: FakeCluster) -> None:
        with pytest.raises(InferError, match="unknown control verb 'nonesuch'"):
            await handler.control("nonesuch", None)
        with pytest.raises(InferError):
            handler.submit(None, None)  # type: ignore[arg-type]

    run(work)


def test_errors_of_the_manager_pass() -> None:
    class Both(InferError, ValueError):
        """As Serve raises an error of a replica."""

    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        task = await called(handler, cluster)
        cluster.calls[-1][2].set_exception(Both(ErrorCode.NOT_FOUND, "no such model"))
        with pytest.raises(InferError, match="no such model") as raised:
            await task
        assert type(raised.value) is InferError and raised.value.failure.code is ErrorCode.NOT_FOUND

    run(work)


def test_a_manager_that_cannot_be_opened_is_opened_by_the_next_call() -> None:
    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        cluster.fails = 1
        with pytest.raises(ConnectionError):
            await handler.control("manage", ["index", []])
        await called(handler, cluster)
        assert cluster.opened == 2

    run(work)


def test_a_cancelled_call_is_cancelled_at_the_manager() -> None:
    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        task = await called(handler, cluster, "watch")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cluster.calls[-1][2].cancelled()

    run(work)


def test_questions_are_answered_or_time_out() -> None:
    async def work(handler: HostHandler, _: FakeCluster) -> None:
        asked = asyncio.ensure_future(handler.ask("health", 5.0))
        verb, number, what = await handler.control("next", None)
        assert (verb, what) == ("ask", "health")
        await handler.control("answer", [number + 1, "of another question"])
        await handler.control("answer", [number, "well"])
        await handler.control("answer", [number, "again"])
        assert await asked == "well"
        with pytest.raises(TimeoutError):
            await handler.ask("describe", 0.01)
        await handler.control("answer", [number + 1, "too late"])

    run(work)


def test_what_was_told_to_the_process_before_is_forgotten() -> None:
    async def work(handler: HostHandler, _: FakeCluster) -> None:
        handler.tell("stop")
        handler.begin()
        handler.tell("ask", 1, "health")
        assert await handler.control("next", None) == ["ask", 1, "health"]

    run(work)


def test_busy_is_how_long_it_executes() -> None:
    assert run(lambda handler, _: handler.control(BUSY, None), busy_s=2.5) == 2.5


def test_watched_replicas_are_told_until_unwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribed: dict[str, Any] = {}
    monkeypatch.setattr(replicas, "subscribe", subscribed.__setitem__)
    monkeypatch.setattr(replicas, "unsubscribe", lambda application, _: subscribed.pop(application))

    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        await handler.control("watch", ["add", "add:1"])
        assert cluster.watched == [("add", "add:1")]
        subscribed["add:1"]((replicas.ReplicaAddress("a", "node", "unix:/a", "tcp:h:1"),))
        verb, application, found = await handler.control("next", None)
        assert (verb, application) == ("replicas", "add:1")
        assert found["a"]["tcp"] == "tcp:h:1"
        await handler.control("watch", ["add", "add:1"])  # once more
        await handler.control("unwatch", "add:1")
        await handler.control("unwatch", "add:1")
        await until(lambda: cluster.ended == 2)
        assert not subscribed

    run(work)


def test_a_watch_that_was_cancelled_while_it_was_opened_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "subscribe", lambda *_: None)
    monkeypatch.setattr(replicas, "unsubscribe", lambda *_: None)

    async def work(handler: HostHandler, cluster: FakeCluster) -> None:
        task = asyncio.ensure_future(handler.control("watch", ["add", "add:1"]))
        await let_run()
        task.cancel()
        handler.begin()  # the process has ended
        await until(lambda: cluster.ended)

    run(work)


def test_the_outcome_of_a_load_is_waited_for() -> None:
    async def work(handler: HostHandler, _: FakeCluster) -> None:
        waiting = asyncio.ensure_future(handler.loaded())
        await let_run()
        description = Description(model_spec(Path("/"), CONFIG), error="none")
        report = [msgspec.msgpack.encode(description), {"unix": "unix:/a"}]
        await handler.control("loaded", report)
        await handler.control("loaded", report)
        assert await waiting == (description, {"unix": "unix:/a"})

    run(work)
