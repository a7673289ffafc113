"""Times of single responses, which backends in C report."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.core.observability.statistics import Duration, ResponseDurations
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Served, config
from tests.unit.backends.cpp.test_backend import BATCHED, DECOUPLED, ask, failure
from tests.waiting import block_until


def served(libraries: Path, text: str) -> Served:
    return Served(
        find_backend(BackendPlace("timing", libraries)), config(text.replace('"probe"', '"timing"'))
    )


@pytest.mark.parametrize("text", [BATCHED, DECOUPLED])
def test_times_are_added_up_by_the_number_of_the_response(libraries: Path, text: str) -> None:
    serving = served(libraries, text)
    for _ in range(2):
        (call,) = serving(ask("", 1, 3, 6))
        call.wait()
    times = serving.model.responses
    block_until(lambda: 5 in times and times[5].success.count == 2)
    infer, output, total = Duration(2, 20), Duration(2, 200), Duration(2, 220)
    assert times == {
        0: ResponseDurations(infer, output, success=total),
        1: ResponseDurations(infer, output, fail=total),
        2: ResponseDurations(total, fail=total),
        3: ResponseDurations(total, empty_response=total),
        4: ResponseDurations(cancel=total),
        5: ResponseDurations(Duration(2, 4), Duration(2, 6), success=Duration(2, 10)),
    }
    serving.close()


@pytest.mark.parametrize(
    ("times", "what"),
    [
        ((4, 3, 6), "Response start cannot happen after compute output start"),
        ((7, 0, 6), "Response start cannot happen after response end"),
        ((1, 7, 6), "Compute output start cannot happen after response end"),
    ],
)
def test_times_that_contradict_each_other_are_refused(
    libraries: Path, times: tuple[float, ...], what: str
) -> None:
    serving = served(libraries, BATCHED)
    (call,) = serving(ask("", *times))
    assert failure(call) == (ErrorCode.INVALID_ARG, what)
    serving.close()
