"""The decision where a batch executes, over durations alone."""

import pytest

from deployments.event_loop_execution.policy import (
    BRIEF_NS,
    KEPT_RUNS,
    LONG_NS,
    MAX_REQUIRED_RUNS,
    MEAN_WEIGHT,
    REQUIRED_RUNS,
    SHORT_NS,
    ExecutionHistory,
    may_execute_on_loop,
)


def history(runs: int, busy_ns: int = SHORT_NS - 1) -> ExecutionHistory:
    made = ExecutionHistory()
    for _ in range(runs):
        made.record(busy_ns)
    return made


def on_loop(made: ExecutionHistory, busy_ns: int, is_only_instance: bool = True) -> ExecutionHistory:
    made.record(busy_ns)
    made.record_on_loop(busy_ns, is_only_instance)
    return made


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (history(REQUIRED_RUNS - 1), False),
        (history(REQUIRED_RUNS), True),
        (history(REQUIRED_RUNS, SHORT_NS), False),
        (on_loop(history(REQUIRED_RUNS), LONG_NS + 1), False),
    ],
)
def test_only_short_executions_lead_to_the_loop(made: ExecutionHistory, expected: bool) -> None:
    assert may_execute_on_loop(made, may_call_models=False, is_only_instance=True) is expected


@pytest.mark.parametrize(
    ("calls", "only", "expected"), [(True, True, True), (True, False, False), (False, False, True)]
)
def test_several_instances_that_call_models_stay_on_threads(calls: bool, only: bool, expected: bool) -> None:
    assert may_execute_on_loop(history(REQUIRED_RUNS), calls, only) is expected


def test_one_interruption_does_not_undo_many_short_executions() -> None:
    made = history(KEPT_RUNS * REQUIRED_RUNS)
    made.record(SHORT_NS)
    assert may_execute_on_loop(made, may_call_models=False, is_only_instance=True)


def test_long_executions_on_the_loop_double_the_required_runs() -> None:
    made = ExecutionHistory()
    required = []
    for _ in range(10):
        required.append(on_loop(made, LONG_NS + 1).required_runs)
    assert required[:2] == [2 * REQUIRED_RUNS, 4 * REQUIRED_RUNS] and required[-1] == MAX_REQUIRED_RUNS
    assert made.short_runs == 0


@pytest.mark.parametrize(("busy_ns", "stays"), [(BRIEF_NS // 2, True), (SHORT_NS - 1, False)])
def test_several_instances_share_the_loop_for_brief_executions_only(busy_ns: int, stays: bool) -> None:
    made = history(REQUIRED_RUNS)
    for _ in range(MEAN_WEIGHT):
        on_loop(made, busy_ns, is_only_instance=False)
    assert (made.required_runs == REQUIRED_RUNS) is stays
