"""The states of a scheduler's instances, by any order of events."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.execution.instance_thread import InstanceThread
from deployments.scheduling.instances import EXECUTING, FREE, Instances, Phase, State, end


@pytest.mark.parametrize(
    ("state", "next_state"),
    [
        (EXECUTING, FREE),
        (State(Phase.PREPARED), EXECUTING),
        (State(Phase.PREPARED, lost=True, leaves=True), State(Phase.EXECUTING, lost=True, leaves=True)),
        (State(Phase.EXECUTING, lost=True), State(Phase.RECOVERING)),
        (State(Phase.EXECUTING, lost=True, leaves=True), State(Phase.RECOVERING, leaves=True)),
        (State(Phase.EXECUTING, leaves=True), State(Phase.GONE)),
        (State(Phase.FREE, lost=True), State(Phase.RECOVERING)),
        (State(Phase.FREE, leaves=True), State(Phase.GONE)),
        (State(Phase.RECOVERING), FREE),
        (State(Phase.RECOVERING, lost=True), State(Phase.RECOVERING)),
        (State(Phase.RECOVERING, leaves=True), State(Phase.GONE)),
    ],
)
def test_what_follows_a_state(state: State, next_state: State) -> None:
    assert end(state) == next_state


class Instance:
    """Keeps what it is to do when it has recovered."""

    def __init__(self) -> None:
        self.recovered: list[Callable[[], object]] = []
        self.executing = 0

    def recover(self, wait: Callable[[], object], recovered: Callable[[], object]) -> None:
        wait()
        self.recovered.append(recovered)


class Driver:
    """Does with two instances what a scheduler may do, and compares."""

    def __init__(self) -> None:
        self.available: list[InstanceThread] = []
        self.instances = Instances(self.available.append)
        self.all = [cast(Any, Instance()) for _ in range(2)]
        self.removed: dict[Any, asyncio.Future[None]] = {}
        self.lost = self.waited = 0
        for each in self.all:
            self.instances.add(each)

    def do(self, event: str, number: int) -> None:
        each = self.all[number]
        gone = each in self.removed and self.removed[each].done()
        if event == "start" and each in self.instances.free:
            self.instances.start(each)
            each.executing = 1
        elif event == "prepare" and each == self.instances.executing():
            self.instances.prepare(each)
            each.executing = 2
        elif event == "end" and each.executing:
            each.executing -= 1
            assert self.instances.end(each) == bool(each.executing)
        elif event == "suspend" and not gone and self.lost == self.waited:
            self.lost += 1
            self.instances.suspend(each, self._wait)
        elif event == "remove" and each not in self.removed:
            self.removed[each] = asyncio.Future(loop=asyncio.get_running_loop())
            self.instances.remove(each, self.removed[each])
        elif event == "recover" and each.recovered:
            each.recovered.pop()()

    def _wait(self) -> None:
        self.waited += 1

    def check(self) -> None:
        for each in self.all:
            idle = not each.executing and not each.recovered
            removed = each in self.removed
            assert (each in self.instances.free) == (idle and not removed)
            assert not removed or self.removed[each].done() == idle
        assert len(self.instances.free) == len(set(self.instances.free))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "prepare", "end", "suspend", "remove", "recover"]), st.integers(0, 1)
        ),
        max_size=40,
    )
)
def test_an_instance_is_free_or_busy_or_gone(events: list[tuple[str, int]]) -> None:
    async def run() -> None:
        driver = Driver()
        for event, number in events:
            driver.do(event, number)
            driver.check()

    asyncio.run(run())
