"""A loop that other threads run while its own waits."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from app.transport.loops.borrowable import BorrowableLoop, runs_on_own_thread
from app.transport.loops.thread import LoopThread
from tests.waiting import block_until

HERE = threading.get_ident


@pytest.fixture
def loop() -> Iterator[BorrowableLoop]:
    plane = LoopThread("test", borrowable=True)
    assert isinstance(plane.loop, BorrowableLoop)
    yield plane.loop
    plane.stop()


def run_here(loop: BorrowableLoop, work: Callable[[], object]) -> None:
    """Run work on this thread, once the loop waits."""
    block_until(lambda: loop.borrow(work))


def test_work_and_the_callbacks_it_leads_to_run_on_the_borrowing_thread(loop: BorrowableLoop) -> None:
    seen: list[tuple[int, bool, bool]] = []

    errors: list[object] = []
    loop.set_exception_handler(lambda _, error: errors.append(error))

    def note() -> None:
        seen.append((HERE(), asyncio.get_running_loop() is loop, runs_on_own_thread(loop)))

    def work() -> None:
        note()
        loop.call_soon(note)
        loop.call_soon(note).cancel()
        loop.create_task(later())

    async def later() -> None:
        await asyncio.sleep(0)
        note()

    run_here(loop, work)
    assert seen == [(HERE(), True, False)] * 3 and not errors
    assert asyncio._get_running_loop() is None
    loop.call_soon_threadsafe(note)
    block_until(lambda: len(seen) == 4)
    assert seen[3][0] != HERE() and seen[3][1:] == (True, True)


def test_a_loop_that_runs_callbacks_is_not_lent(loop: BorrowableLoop) -> None:
    begun, end, done = threading.Event(), threading.Event(), threading.Event()
    loop.call_soon_threadsafe(begun.set)
    loop.call_soon_threadsafe(end.wait)
    assert begun.wait(60)
    assert not loop.borrow(done.set)
    end.set()
    run_here(loop, lambda: loop.borrow(done.set))  # nor by who has it
    assert not done.is_set()


def test_who_has_a_running_loop_or_debugs_does_not_borrow(loop: BorrowableLoop) -> None:
    async def borrows() -> bool:
        return loop.borrow(done.set)

    done = threading.Event()
    run_here(loop, lambda: None)
    assert not asyncio.run(borrows())
    loop.set_debug(True)
    block_until(lambda: loop._waits)
    assert not loop.borrow(done.set)
    assert not done.is_set()


def test_callbacks_of_other_threads_come_first(loop: BorrowableLoop) -> None:
    for _ in range(100):
        order: list[int] = []
        loop.call_soon_threadsafe(order.append, 1)
        run_here(loop, partial(order.append, 2))
        assert order == [1, 2]


def test_a_timer_of_borrowed_work_wakes_the_thread_of_the_loop(loop: BorrowableLoop) -> None:
    run_here(loop, lambda: loop.call_later(1000, lambda: None))
    fired = threading.Event()
    for _ in range(2):  # the second is earlier than what the thread waits for by then
        run_here(loop, lambda: loop.call_later(0.001, fired.set))
        assert fired.wait(60)
        fired.clear()


def test_a_borrower_leaves_a_long_chain_of_callbacks(loop: BorrowableLoop) -> None:
    ran: list[int] = []
    ended = threading.Event()

    def work() -> None:
        ran.append(HERE())
        if len(ran) < 1000:
            loop.call_soon(work)
        else:
            ended.set()

    run_here(loop, work)
    assert ended.wait(60)
    assert 100 < ran.count(HERE()) < 500 and len(ran) == 1000


def test_a_process_that_the_work_forks_handles_signals_at_once(loop: BorrowableLoop) -> None:
    statuses: list[int] = []

    def work() -> None:
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGTERM)
            os._exit(5)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    try:
        run_here(loop, work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert statuses == [3]


def test_a_signal_is_handled_after_the_work(loop: BorrowableLoop) -> None:
    done: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("work")
        loop.call_soon(done.append, "callback")

    # Of a program that a shell has started in the background it is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_here(loop, work)
        assert done == ["work", "callback"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        run_here(loop, lambda: done.append("more"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert done[2:] == ["more"]


def test_work_that_ends_the_program_leaves_the_loop_in_order(loop: BorrowableLoop) -> None:
    ran = threading.Event()

    def work() -> None:
        loop.call_soon(ran.set)
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_here(loop, work)
    assert ran.wait(60)
    run_here(loop, ran.clear)
    assert not ran.is_set()


def test_one_thread_at_a_time_runs_callbacks_and_none_is_lost(loop: BorrowableLoop) -> None:
    count, inside, overlaps, borrowed = 0, False, 0, [0]

    def work() -> None:
        nonlocal count, inside, overlaps
        overlaps += inside
        inside = True
        before = count
        time.sleep(0)  # another thread has the interpreter
        loop.call_soon(lambda: None)
        inside = False
        count = before + 1

    def call() -> None:
        for number in range(600):
            if loop.borrow(work):
                borrowed[0] += 1
            elif number % 3:
                loop.call_soon_threadsafe(work)
            else:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
                loop.call_soon_threadsafe(work)

    threads = [threading.Thread(target=call) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        block_until(lambda: count == 4 * 600, f"{count} of {4 * 600}", 10)
    finally:
        sys.setswitchinterval(interval)
    assert not overlaps and borrowed[0] > 0
