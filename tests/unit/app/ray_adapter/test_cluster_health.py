"""When a part that a server stands on counts as gone."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest

from app.core.system.processes import Process, process
from app.ray_adapter import cluster_health
from app.ray_adapter.cluster_health import ClusterHealth, Part
from tests.waiting import block_until, let_run, until

ANSWER_S = 0.01


class Peer:
    """Something that is asked: it answers, fails, or leaves questions open."""

    def __init__(self) -> None:
        self.failing = False
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def ask(self) -> Process | None:
        self.asked += 1
        await self.answers.wait()
        if self.failing:
            raise OSError("no connection")
        return None


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_health, "_ASK_S", 0.001)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started
        started.kill()


def fault(part: Part, now: float = 0.0) -> str:
    part.look(now)
    return part.fault


async def test_part_that_answers_has_no_fault() -> None:
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 3)
    assert fault(part) == ""
    asking.cancel()


async def test_part_that_fell_silent_has_a_fault_until_it_answers() -> None:
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 1)
    peer.answers.clear()
    await until(lambda: fault(part, 7.0) == "does not answer")
    assert part.lasts(3.0, 10.0) and not part.lasts(3.1, 10.0)
    asked = peer.asked
    await let_run()
    assert peer.asked == asked, "no second question while one is open"
    peer.answers.set()
    await until(lambda: fault(part) == "")
    asking.cancel()


async def test_failed_question_is_a_fault() -> None:
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 1)
    peer.failing = True
    await until(lambda: fault(part) == "does not answer")
    asking.cancel()


async def test_part_that_has_never_answered_has_no_fault() -> None:
    peer = Peer()
    peer.failing = True
    part = Part("it", peer.ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 3)
    assert fault(part) == ""
    asking.cancel()


def test_stopped_and_ended_processes_are_faults_at_once(sleeper: "subprocess.Popen[bytes]") -> None:
    async def ask() -> None: ...

    part = Part("it", ask, ANSWER_S, process(sleeper.pid))
    assert fault(part, 1.0) == ""
    sleeper.send_signal(signal.SIGSTOP)
    block_until(lambda: fault(part, 2.0) == "is stopped")
    sleeper.send_signal(signal.SIGCONT)
    block_until(lambda: fault(part, 3.0) == "")
    sleeper.kill()
    block_until(lambda: fault(part, 4.0) == "has ended")
    fault(part, 9.0)
    assert part.since == 4.0


async def test_connection_is_closed_at_the_end() -> None:
    closed = asyncio.Event()
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S, close=closed.set)
    watching = asyncio.create_task(ClusterHealth([part]).watch())
    await until(lambda: peer.asked > 1)
    assert not closed.is_set()
    watching.cancel()
    await until(closed.is_set)


async def test_process_of_an_answer_is_looked_at_from_then_on(sleeper: "subprocess.Popen[bytes]") -> None:
    async def ask() -> Process | None:
        return process(sleeper.pid)

    part = Part("it", ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: part.process is not None)
    asking.cancel()
    sleeper.kill()
    await until(lambda: fault(part) == "has ended")


@pytest.mark.parametrize("trouble", ["ended", "silent"])
async def test_process_that_runs_is_asked_half_as_often_until_it_is_in_trouble(
    trouble: str, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []

    async def turn(period_s: float) -> None:
        turns.append(period_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(cluster_health, "next_turn", turn)
    monkeypatch.setattr(cluster_health, "_ASK_S", 2.0)
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S, process(sleeper.pid))
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 2)
    assert turns[:4] == [2.0, 4.0, 2.0, 4.0]
    if trouble == "ended":
        sleeper.kill()
    else:
        peer.failing = True
    await until(lambda: turns[-3:] == [2.0, 2.0, 2.0])
    asking.cancel()


async def test_part_that_fell_silent_was_of_no_use_since_it_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(cluster_health, "time", SimpleNamespace(monotonic=lambda: now))
    peer = Peer()
    part = Part("it", peer.ask, ANSWER_S)
    asking = asyncio.create_task(part.keep_asking())
    await until(lambda: peer.asked > 1)
    peer.answers.clear()
    await until(lambda: fault(part, 105.0) == "does not answer")
    health = ClusterHealth([part])
    health.look(105.0)
    assert health.lasting(5.0, 105.0) == "it does not answer" and not part.lasts(5.0, 105.0)
    assert not health.lasting(5.1, 105.0)
    asking.cancel()


async def test_server_that_was_away_is_found_soon_after_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_health._RECONNECT_MS == 1000
    monkeypatch.setattr(cluster_health, "_RECONNECT_MS", 100)  # the least that gRPC allows
    tries: list[asyncio.StreamWriter] = []

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(writer)
        writer.close()

    away = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = away.sockets[0].getsockname()[1]
    part = cluster_health._server_part("Ray's GCS", f"127.0.0.1:{port}", None, "")
    asking = asyncio.create_task(part.keep_asking())
    # By itself gRPC would have waited for three minutes by then: from try to try for 1.6 times as long.
    await until(lambda: len(tries) > 10)
    assert not part._known
    away.close()
    await away.wait_closed()
    answer = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": answer})
    server = grpc.server(ThreadPoolExecutor(1), handlers=[health])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        await until(lambda: part._known)
    finally:
        asking.cancel()
        server.stop(None)


def test_health_tells_what_is_wrong_for_long(sleeper: "subprocess.Popen[bytes]") -> None:
    part = Part("it", Peer().ask, ANSWER_S, process(sleeper.pid))
    health = ClusterHealth([part])
    sleeper.kill()
    sleeper.wait()
    health.look(10.0)
    assert health.lasting(15.0, 24.0) == ""
    assert health.lasting(15.0, 25.0) == health.fault == "it has ended"


def test_changes_are_told_once_and_together(sleeper: "subprocess.Popen[bytes]") -> None:
    async def ask() -> None: ...

    told: list[str] = []
    parts = [Part(name, ask, ANSWER_S, process(sleeper.pid)) for name in ("one", "other")]
    health = ClusterHealth(parts, told.append)
    health.look(1.0)
    assert told == []
    sleeper.kill()
    block_until(lambda: parts[0].process is not None and parts[0].process.fault == "has ended")
    health.look(2.0)
    health.look(3.0)
    assert told == ["one has ended, other has ended"]


@pytest.mark.parametrize(
    ("many_nodes", "unready", "degraded"),
    [(False, ["raylet has ended, GCS has ended"], []), (True, ["raylet has ended"], ["GCS has ended"])],
)
def test_on_many_nodes_only_the_raylet_makes_an_ingress_unready(
    sleeper: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    many_nodes: bool,
    unready: list[str],
    degraded: list[str],
) -> None:
    async def ask() -> None: ...

    parts = [Part(name, ask, ANSWER_S, process(sleeper.pid)) for name in ("raylet", "GCS")]
    monkeypatch.setattr(cluster_health, "node_parts", lambda: parts)
    monkeypatch.setattr(cluster_health, "controller_part", lambda: Part("controller", ask, ANSWER_S))
    told: tuple[list[str], list[str]] = ([], [])
    manager = Part("manager", ask, ANSWER_S)
    health = cluster_health.server_health(manager, many_nodes, told[0].append, told[1].append)
    sleeper.kill()
    block_until(lambda: all(part.process is not None and part.process.fault for part in parts))
    for each in health:
        each.look(1.0)
    assert told == (unready, degraded)
