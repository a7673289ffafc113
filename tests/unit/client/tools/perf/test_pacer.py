"""Moments of an open loop: when the generator is awake for them, and how soon it runs."""

import asyncio
import os
import platform
import threading
import time
from pathlib import Path

import pytest

from nereid_client.tools.perf.generator.pacer import Pacer, ahead
from nereid_client.tools.perf.generator.priority import run_first


@pytest.mark.parametrize(("rate", "microseconds"), [(100, 150), (1000, 100), (10_000, 10)])
def test_generator_is_awake_before_moments_for_a_tenth_of_the_time_at_most(
    rate: int, microseconds: int
) -> None:
    moments = [place * 10**9 // rate for place in range(50)]
    assert ahead(moments) == pytest.approx(microseconds * 1000, rel=0.01)
    assert ahead(moments[:1]) == ahead([]) == 0 and ahead([5, 5, 5]) == 0


async def test_no_moment_is_early() -> None:
    start = time.monotonic_ns() + 5_000_000
    moments, arrived = [start, start + 2_000_000, start + 2_000_000], list[tuple[int, int]]()
    done = asyncio.Event()

    def arrive(intended: int, noticed: int) -> None:
        arrived.append((intended, noticed))
        if len(arrived) == len(moments):
            done.set()

    pacer = Pacer(asyncio.get_running_loop(), moments, arrive, lambda: None)
    await asyncio.wait_for(done.wait(), 60)
    pacer.close()
    assert [intended for intended, _ in arrived] == moments
    assert all(noticed >= intended for intended, noticed in arrived)


def slice_of(thread: int) -> int:
    lines = Path(f"/proc/self/task/{thread}/sched").read_text().splitlines()
    return next((int(line.split(":")[1]) for line in lines if line.startswith("se.slice")), 0)


def slice_and_policy_in_a_thread() -> list[tuple[int, int]]:
    """Return both with and without the priority of an open loop, in a thread that ends with it."""
    seen: list[tuple[int, int]] = []

    def look() -> None:
        for on in (True, False):
            run_first(on)
            policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
            seen.append((slice_of(threading.get_native_id()), policy))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen


def test_generator_runs_first_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if release < (6, 12) or not Path("/proc/self/sched").exists():
        pytest.skip("a kernel without slices of threads")

    def refused(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_setscheduler", refused)
        (short, policy), (usual, turns) = slice_and_policy_in_a_thread()
    assert short == 100_000 < usual and (policy, turns) == (os.SCHED_OTHER, os.SCHED_BATCH)
    if os.geteuid() == 0:
        assert [policy for _, policy in slice_and_policy_in_a_thread()] in (
            [os.SCHED_RR, os.SCHED_BATCH],
            [os.SCHED_OTHER, os.SCHED_BATCH],  # root without the capability
        )
