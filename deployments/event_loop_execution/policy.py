"""Whether the next batch of an instance executes on the event loop: a function of its last durations."""

from typing import Final

SHORT_NS: Final = 1_000_000
"""An execution under 1 ms counts as short: two thread switches (50 to 100 us) are 5% of it or more."""

BRIEF_NS: Final = 400_000
"""Mean duration up to which several instances share the loop: above 0.4 ms they gain more by running in
parallel on threads than by saving switches; below, they would wait for the interpreter lock anyway."""

LONG_NS: Final = 10_000_000
"""An execution over 10 ms on the loop delayed every connection of the replica: back to the thread at once."""

TURN_NS: Final = 200_000
"""Batches that wait follow each other in one turn of the loop for so long: a turn, with a poll, a write and a
client that wakes up, costs some 10 us, 5% of it. Longer turns would keep short responses waiting."""

REQUIRED_RUNS: Final = 16
"""Short executions before the first batch executes on the loop: a few more than a warm-up takes."""

MAX_REQUIRED_RUNS: Final = 4096
"""Upper bound of the required runs, which double whenever an execution on the loop was too long."""

KEPT_RUNS: Final = 4
"""Short executions are counted up to this multiple of the required ones, and a longer one subtracts the
required ones once: an execution that the operating system interrupted does not undo all that were short."""

MEAN_WEIGHT: Final = 16
"""The moving mean gives the last execution a weight of 1/16: about as many as decide at first."""


class ExecutionHistory:
    """The last durations of an instance, reduced to what the decision needs.

    Attributes:
        short_runs: executions under `SHORT_NS`, less a penalty for longer ones.
        required_runs: short runs that the event loop asks for.
        mean_ns: moving mean of the executions on the loop of one of several instances.
    """

    __slots__ = ("mean_ns", "required_runs", "short_runs")

    def __init__(self) -> None:
        self.short_runs = self.mean_ns = 0
        self.required_runs = REQUIRED_RUNS

    def record(self, busy_ns: int) -> None:
        """Count an execution that kept its thread, or the loop, for `busy_ns`."""
        if busy_ns < SHORT_NS:
            self.short_runs = min(self.short_runs + 1, KEPT_RUNS * self.required_runs)
        else:
            self.short_runs = max(self.short_runs - self.required_runs, 0)

    def record_on_loop(self, busy_ns: int, is_only_instance: bool) -> None:
        """Leave the loop, and double the runs required to return, if an execution there was too long."""
        if not is_only_instance:
            # On the loop only: on threads, executions take longer by waiting for the interpreter lock.
            self.mean_ns += (min(busy_ns, SHORT_NS) - self.mean_ns) // MEAN_WEIGHT
        if busy_ns > LONG_NS or not (is_only_instance or self.mean_ns < BRIEF_NS):
            self.short_runs = self.mean_ns = 0
            self.required_runs = min(2 * self.required_runs, MAX_REQUIRED_RUNS)


def may_execute_on_loop(history: ExecutionHistory, may_call_models: bool, is_only_instance: bool) -> bool:
    """Decide where the next batch of an eligible instance executes.

    Args:
        history: durations of the executions so far.
        may_call_models: executions may wait for responses of other models.
        is_only_instance: the model has no other instance in this replica. Several that wait on one loop
            would be nested in each other, and each count the others' waiting as its own.
    """
    return history.short_runs >= history.required_runs and (is_only_instance or not may_call_models)
