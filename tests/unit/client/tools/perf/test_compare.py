"""A run beside an earlier one."""

import json
from typing import Any

import pytest

from nereid_client.tools.perf.compare import compare, unknown, worse
from nereid_client.tools.perf.generator.job import End, Level
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.result import FORMAT, Result
from tests.unit.client.tools.perf.rows import result, rows


def document(*results: Result, **more: Any) -> Any:
    levels = [each.as_json() for each in results]
    made = {"format": FORMAT, "model": "m", "protocol": "http", "batch": 1, "levels": levels, **more}
    return json.loads(json.dumps(made))  # as it comes from a file


def verdicts(old: Result, new: Result, threshold: float = 0.10) -> dict[str, str]:
    changes = compare(document(old), document(new), threshold)
    return {change.metric: change.verdict for change in changes}


def test_equal_runs_are_the_same() -> None:
    assert verdicts(result([5] * 100), result([5] * 100)) == {"rate": "same", "p50": "same", "p99": "same"}


def test_slower_run_is_worse_and_a_faster_one_better() -> None:
    changes = compare(document(result([5] * 100)), document(result([7] * 100)), 0.10)
    assert worse(changes) and {change.verdict for change in changes} == {"same", "worse"}
    assert changes[1].percent == pytest.approx(40)
    assert verdicts(result([7] * 100), result([5] * 100))["p50"] == "better"


def test_change_below_the_threshold_is_none() -> None:
    assert verdicts(result([5] * 100), result([5.4] * 100))["p50"] == "same"
    assert verdicts(result([5] * 100), result([5.4] * 100), 0.05)["p50"] == "worse"


def test_change_within_the_noise_is_none() -> None:
    noisy = [5, 9, 6, 12, 5, 4, 14, 5, 6, 8] * 10
    shifted = [value * 1.2 for value in noisy[5:] + noisy[:5]]
    # Each tenth of a run has the same values: spread them out, so that the parts differ.
    assert verdicts(result(sorted(noisy)), result(sorted(shifted)))["p50"] == "same"


def test_more_failures_are_worse() -> None:
    failing = result([5] * 100, records=rows([5] * 100, end=End.REFUSED))
    assert verdicts(result([5] * 100), failing)["failed"] == "worse"


def test_void_levels_have_no_verdict() -> None:
    changes = compare(document(result([5] * 100)), document(result([9] * 100, busy=0.9)), 0.1)
    assert {change.verdict for change in changes} == {"void"} and unknown(changes) and not worse(changes)


def test_rates_of_an_objective_are_compared() -> None:
    old, new = (document(slo={"rules": "p99<1ms", "rate": rate, "tried": []}) for rate in (100, 80))
    assert worse(compare(old, new, 0.10)) and not worse(compare(new, old, 0.10))


@pytest.mark.parametrize(
    ("old", "text"),
    [
        (document(result([5] * 100), model="other"), "the model was 'other'"),
        (document(result([5] * 100, Level("rate", 50))), "no load is in both runs"),
        ({"levels": []}, "another version"),
    ],
)
def test_runs_that_cannot_be_compared(old: Any, text: str) -> None:
    with pytest.raises(PerfError, match=text):
        compare(old, document(result([5] * 100)), 0.1)
