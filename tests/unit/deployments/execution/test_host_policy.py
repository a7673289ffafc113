"""Host policies: what they say, and that the kernel does it."""

import os
import threading
from collections.abc import Callable, Mapping

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.execution.host_policy import apply, parse_cores


def in_thread(call: Callable[[], object]) -> "list[object]":
    """The outcome of a call on a thread of its own, which it may change."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except InferError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome


@pytest.mark.parametrize(
    ("text", "cores"), [("0-0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8-9", {0, 1, 8, 9}), ("3-2", set())]
)
def test_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (
            {"cpu-cores": "3"},
            "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3",
        ),
        ({"cpu-cores": "0-1,x-2"}, "Parsing 'cpu-cores' value: Can't parse 'x' to integer"),
        ({"numa-node": "first"}, "Parsing 'numa-node' value: Can't parse 'first' to integer"),
    ],
)
def test_unreadable_values_are_refused(policy: Mapping[str, str], text: str) -> None:
    (error,) = in_thread(lambda: apply(policy))
    assert isinstance(error, InferError)
    assert (error.code, error.message) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize("cores", ["1000-1001", "100000-100001"])
def test_unknown_cores_are_refused(cores: str) -> None:
    (error,) = in_thread(lambda: apply({"cpu-cores": cores}))
    assert isinstance(error, InferError) and error.code is ErrorCode.INTERNAL
    assert error.message.startswith("Unable to set NUMA thread affinity: ")


def test_unknown_numa_node_is_refused() -> None:
    (error,) = in_thread(lambda: apply({"numa-node": "1000"}))
    assert isinstance(error, InferError) and error.code is ErrorCode.INTERNAL
    assert error.message.startswith("Unable to set NUMA memory policy: ")


def test_policy_applies_to_a_thread_and_the_threads_it_starts() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)

    def affinities() -> tuple[set[int], set[int]]:
        apply({"cpu-cores": f"{core}-{core}", "other": "a backend's"})
        (child,) = in_thread(lambda: os.sched_getaffinity(0))
        assert isinstance(child, set)
        return os.sched_getaffinity(0), child

    assert in_thread(affinities) == [({core}, {core})]
    assert os.sched_getaffinity(0) == before
