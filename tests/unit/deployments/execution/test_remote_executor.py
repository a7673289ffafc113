"""Batches that another process executes: the event loop sends them, and reads the reply when there is one."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from app.core.errors import invalid_arg
from app.core.tensors import InferResponse
from backends.base import Begun, Instance, Request
from tests.unit.deployments.execution.instance_bench import Bench, FakeBackend, Start, answer_all, benches
from tests.waiting import until

LOOP = threading.main_thread().name


class FakeProcess:
    """The other end of a link, on which each byte is the end of one batch."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()

    def end(self) -> None:
        self.there.close()

    def close(self) -> None:
        self.here.close()
        self.there.close()


class FakeBegun(Begun):
    def __init__(self, backend: "FakeRemote", process: FakeProcess, requests: Sequence[Request]) -> None:
        self.backend = backend
        self.process = process
        self.requests = requests
        self.ended = False

    @property
    def source(self) -> object:
        return self.process

    def open_source(self) -> socket.socket:
        self.backend.opened += 1
        return self.process.here.dup()

    def has_ended(self) -> bool:
        try:
            found = self.process.here.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not found:
            raise ConnectionError
        self.ended = found == b"."
        return self.ended

    def finish(self) -> None:
        backend = self.backend
        backend.calls.append(("finish" if self.ended else "fail", threading.current_thread().name))
        backend.finish(self.requests)


class FakeRemote(FakeBackend):
    """A backend with a process, which executes when its test says so."""

    def __init__(self) -> None:
        super().__init__(answer_all)
        self.process = FakeProcess()
        self.finish = answer_all
        self.begun: list[FakeBegun] = []
        self.opened = 0
        self.runs = True

    def instance_begin(self, instance: Instance, requests: Sequence[Request]) -> Begun | None:
        self.calls.append(("begin", threading.current_thread().name))
        if not self.runs:
            return None
        self.begun.append(FakeBegun(self, self.process, requests))
        return self.begun[-1]

    def reply(self) -> None:
        self.process.there.send(b".")


@pytest.fixture
async def remote() -> AsyncIterator[FakeRemote]:
    backend = FakeRemote()
    yield backend
    backend.process.close()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with benches() as start:
        yield start


async def executed(bench: Bench, backend: FakeRemote, *ids: str) -> None:
    count = len(bench.finished)
    bench.thread.execute(bench.batch(*ids))
    backend.reply()
    await until(lambda: len(bench.finished) > count)


async def test_the_loop_sends_and_finishes_a_batch(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    await executed(bench, remote, "a", "b")
    assert remote.calls[1:] == [("begin", LOOP), ("finish", LOOP)]
    assert bench.order == ["a", "b", "finished"]
    (batch,) = bench.finished
    assert 0 < batch.start_ns <= batch.infer_start_ns <= batch.infer_end_ns <= batch.end_ns


async def test_it_does_not_wait_for_the_process(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    bench.thread.execute(bench.batch("a"))
    remote.process.there.send(b"-")  # something, which is not the end
    await asyncio.sleep(0.02)
    assert not bench.finished and bench.thread.executing is not None
    remote.reply()
    await until(lambda: len(bench.finished) == 1)
    assert bench.thread.executing is None


async def test_one_socket_is_watched_for_all_batches_of_a_process(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    for name in "abc":
        await executed(bench, remote, name)
    assert remote.opened == 1


async def test_the_next_batch_is_sent_when_the_one_before_has_ended(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    bench.thread.execute(bench.batch("a"))
    bench.thread.execute(bench.batch("b"))
    assert len(remote.begun) == 1
    remote.reply()
    await until(lambda: len(remote.begun) == 2)
    remote.reply()
    await until(lambda: len(bench.finished) == 2)
    assert bench.order == ["a", "finished", "b", "finished"]


async def test_the_thread_executes_what_cannot_be_sent(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    remote.runs = False
    await bench.execute("a")
    assert remote.calls[-1] == ("execute", bench.thread.instance.name)
    remote.runs = True
    await executed(bench, remote, "b")
    assert remote.calls[-1] == ("finish", LOOP)


async def test_nothing_is_sent_while_the_thread_executes(start: Start, remote: FakeRemote) -> None:
    """It may use the same link."""
    release = threading.Event()

    def wait(requests: Sequence[Request]) -> None:
        release.wait(60)
        answer_all(requests)

    bench = start(remote)
    remote.execute, remote.runs = wait, False
    bench.thread.execute(bench.batch("a"))
    remote.runs = True
    bench.thread.execute(bench.batch("b"))
    release.set()
    await until(lambda: len(bench.finished) == 2)
    assert not remote.begun and bench.order.count("finished") == 2


async def test_a_batch_whose_process_ends_is_finished_on_the_thread(start: Start, remote: FakeRemote) -> None:
    """It may take a while until it is known how the process has ended."""
    bench = start(remote)
    bench.thread.execute(bench.batch("a"))
    bench.thread.execute(bench.batch("b"))
    remote.process.end()
    await until(lambda: len(bench.finished) == 2)
    assert remote.calls[-2:] == [("fail", "m_0_0"), ("execute", "m_0_0")]
    first, remote.process = remote.process, FakeProcess()
    first.close()
    await executed(bench, remote, "c")
    assert remote.opened == 2


async def test_a_process_that_ends_idle_is_not_watched_any_more(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    await executed(bench, remote, "a")
    remote.process.end()
    executor = bench.thread._remote
    assert executor is not None
    await until(lambda: executor._watched is None)


async def test_an_error_of_the_process_fails_its_batch_alone(start: Start, remote: FakeRemote) -> None:
    def refuse(requests: Sequence[Request]) -> None:
        raise invalid_arg("no")

    bench = start(remote)
    remote.finish = refuse
    await executed(bench, remote, "a")
    assert bench.error("a").message == "no"
    remote.finish = answer_all
    await executed(bench, remote, "b")
    assert bench.final("b") == InferResponse(id="b")


async def test_an_end_waits_for_the_batch_that_was_sent(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    bench.thread.execute(bench.batch("a"))
    bench.thread.end()
    await asyncio.sleep(0.02)
    assert bench.thread.alive and remote.calls[-1][0] == "begin"
    remote.reply()
    await until(lambda: not bench.thread.alive)
    assert [name for name, _ in remote.calls[-2:]] == ["finish", "unload"]
    bench.final("a")


async def test_an_end_waits_for_a_batch_whose_process_ends(start: Start, remote: FakeRemote) -> None:
    bench = start(remote)
    bench.thread.execute(bench.batch("a"))
    bench.thread.end()
    remote.process.end()
    await until(lambda: not bench.thread.alive)
    assert [name for name, _ in remote.calls[-2:]] == ["fail", "unload"]


async def test_a_decoupled_model_stays_on_its_thread(start: Start, remote: FakeRemote) -> None:
    """Its responses must not wait for the end of the execution."""
    bench = start(remote, decoupled=True)
    await bench.execute("a")
    assert remote.calls[-1] == ("execute", "m_0_0")
