"""The search of the steps of an ensemble: which step is changed, how far, and what is said of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from nereid_client.tools.analyze.ensemble import Combination, computing, improve, limiting, neighbours
from nereid_client.tools.analyze.space import Axes, Candidate
from nereid_client.tools.perf.server_share import Share

AXES = Axes((1, 4, 8), (0, 2000), (1, 2, 4))
NOW = Combination((("decode", Candidate(8, 0, 1)), ("model", Candidate(1, 0, 1))))


def capacities(combination: Combination) -> dict[str, float]:
    """What each step can answer: decode 100 an instance, of which two help; the model by its batch."""
    return {
        "decode": 100.0 * min(combination.of("decode").instances, 2),
        "model": 60.0 * (1 + combination.of("model").batch / 4) * combination.of("model").instances,
    }


def searched(goes_on: Any = lambda: True) -> tuple[Combination, list[Combination]]:
    measured: list[Combination] = []

    def measure(combination: Combination) -> float:
        measured.append(combination)
        return min(capacities(combination).values())

    def busiest(combination: Combination) -> list[str]:
        found = capacities(combination)
        return sorted(found, key=found.__getitem__)

    best, known = improve(NOW, lambda _, own: neighbours(own, AXES, 6), busiest, measure, 2, goes_on)
    assert known[best] == max(known.values())
    return best, measured


def test_the_step_that_limits_is_changed_until_nothing_more_is_gained() -> None:
    best, measured = searched()
    assert min(capacities(best).values()) == 200.0, "what two instances of the first step decode"
    assert len(set(measured)) < 30 < len(AXES.candidates()) ** 2


def test_a_step_is_not_changed_before_it_limits() -> None:
    decoders = [each.of("decode") for each in searched()[1]]
    assert set(decoders[:6]) == {NOW.of("decode")}


def test_a_search_without_time_keeps_what_there_is() -> None:
    times = iter([True, False])
    best, measured = searched(lambda: next(times))
    assert best != NOW and {each.of("decode") for each in measured} == {NOW.of("decode")}


def test_neighbours_differ_in_one_field() -> None:
    found = neighbours(Candidate(4, 0, 1), AXES, 10)
    assert found[:2] == [Candidate(4, 0, 2), Candidate(4, 0, 4)]
    assert set(found) == {*found[:2], Candidate(8, 0, 1), Candidate(1, 0, 1), Candidate(4, 2000, 1)}
    assert all(each.delay_us == 0 for each in neighbours(Candidate(1, 0, 1), AXES, 10))
    assert len(neighbours(Candidate(4, 0, 1), AXES, 2)) == 2


def test_combinations_are_shown_by_step() -> None:
    assert str(NOW) == (
        "decode: max_batch_size 8, delay 0 us, 1 instance; model: max_batch_size 1, delay 0 us, 1 instance"
    )


@pytest.mark.parametrize(
    ("instances", "shares", "says"),
    [
        (
            1,
            {"b": 0.96, "a": 0.2},
            "'b' limits: of the time the instances of the steps compute 'b' 96%, 'a' 20%.",
        ),
        (2, {"b": 0.48, "a": 0.2}, "No step limits, something outside of them does: "),
    ],
)
def test_the_step_that_computes_most_of_its_time_limits(
    instances: int, shares: dict[str, float], says: str
) -> None:
    steps = {
        "a": Share(executions=100, compute_infer_us=3500.0, compute_input_us=500.0),
        "b": Share(executions=60, compute_infer_us=32000.0),
    }
    result: Any = SimpleNamespace(rate=50.0, server=SimpleNamespace(requests=100, steps=steps))
    found = computing(result, {"a": 1, "b": instances})
    assert found == pytest.approx(shares) and list(found) == list(shares)
    assert limiting(found).startswith(says)


def test_of_a_server_without_statistics_nothing_is_said() -> None:
    result: Any = SimpleNamespace(rate=50.0, server=None)
    assert limiting(computing(result, {"a": 1})) == ""
