"""The choice of a configuration: candidates, the model of the queue, what is measured, what is written."""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from nereid_client.tools.analyze import report
from nereid_client.tools.analyze.analysis import best_of
from nereid_client.tools.analyze.choice import compete, finalists, pareto, promising
from nereid_client.tools.analyze.command import main
from nereid_client.tools.analyze.model_trials import ModelTrials
from nereid_client.tools.analyze.queue_model import Costs, best_rate, latencies
from nereid_client.tools.analyze.space import Axes, Candidate, configured, present, unsuited
from nereid_client.tools.analyze.state import State, resumed
from nereid_client.tools.analyze.trials import Measured
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.generator.worker import Workers
from nereid_client.tools.perf.options import PerfError

THREADS = "intra_op_thread_count"
CONFIG: dict[str, Any] = {
    "name": "m",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": ["-1", 2]}],
    "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": "100"},
    "instance_group": [{"name": "m_0", "count": 2, "kind": "KIND_CPU"}],
    "parameters": {"intra_op_thread_count": {"string_value": "3"}, "other": {"string_value": "x"}},
}


def test_candidates_are_all_combinations_that_differ() -> None:
    found = Axes((1, 4), (0, 500), (1, 2)).candidates()
    assert len(found) == 6  # a delay is of no use without batches
    assert Candidate(1, 0, 2) in found and Candidate(1, 500, 1) not in found


def test_candidate_changes_its_fields_alone() -> None:
    assert present(CONFIG, THREADS) == Candidate(8, 100, 2, 3)
    made = configured(CONFIG, Candidate(4, 700, 1, 2), THREADS)
    assert present(made, THREADS) == Candidate(4, 700, 1, 2) and CONFIG["max_batch_size"] == 8
    assert "preferred_batch_size" not in made["dynamic_batching"]
    assert (
        made["parameters"]["other"] == {"string_value": "x"}
        and made["instance_group"][0]["kind"] == "KIND_CPU"
    )
    assert present(configured(CONFIG, Candidate(1, 0, 1), THREADS), THREADS) == Candidate(1, 0, 1, 3)
    unbatched = {"max_batch_size": 0, "instance_group": [{"count": 1}]}
    assert configured(unbatched, Candidate(0, 0, 3), "") == {
        "max_batch_size": 0,
        "instance_group": [{"count": 3}],
    }


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sequence_batching": {}}, "sequences"),
        ({"model_transaction_policy": {"decoupled": True}}, "decoupled"),
        ({}, ""),
    ],
)
def test_models_that_cannot_be_searched(more: dict[str, Any], why: str) -> None:
    assert why in unsuited({**CONFIG, **more}) and bool(unsuited({**CONFIG, **more})) == bool(why)


FIXED = Costs({0: {1: 0.010, 2: 0.011, 4: 0.013, 8: 0.017}}, {1: 1.0, 2: 1.0, 4: 2.0}, 0.001)
"""A model for which batches pay: 10 ms and 1 ms a row."""


def test_latency_at_a_low_rate_is_an_execution_and_what_is_outside() -> None:
    found = latencies(Candidate(8, 0, 1), FIXED, 0.5)
    assert np.median(found) == pytest.approx(0.011, rel=1e-6) and len(found) == 2000
    waiting = latencies(Candidate(8, 5000, 1), FIXED, 0.5)
    assert np.median(waiting) == pytest.approx(0.016, rel=1e-6)  # nobody comes to fill the batch


def test_simulated_queue_of_single_requests_is_that_of_theory() -> None:
    """The mean wait of one server with fixed service times: load * time / 2 / (1 - load)."""
    found = np.concatenate([latencies(Candidate(1, 0, 1), FIXED, 60, seed) for seed in range(20)])
    assert found.mean() == pytest.approx(0.011 + 0.6 * 0.010 / 2 / 0.4, rel=0.1)


def test_batches_and_instances_raise_the_rate_as_far_as_they_help() -> None:
    rates = {c: best_rate(c, FIXED, {"p99": 60}) for c in Axes((1, 8), (0, 2000), (1, 2, 4)).candidates()}
    assert 60 < rates[Candidate(1, 0, 1)] < 100
    assert 300 < rates[Candidate(8, 0, 1)] < 470
    assert rates[Candidate(8, 0, 2)] > 1.7 * rates[Candidate(8, 0, 1)]
    assert rates[Candidate(8, 0, 4)] < 1.2 * rates[Candidate(8, 0, 2)]  # four slow each other down
    assert best_rate(Candidate(8, 0, 1), FIXED, {"p99": 5}) == 0


def test_costs_beyond_the_largest_batch_go_on_as_before() -> None:
    assert FIXED.table(Candidate(10, 0, 4))[1:3] == [0.020, 0.022]
    assert FIXED.table(Candidate(10, 0, 1))[-1] == pytest.approx(0.019)


def grid_and_truth() -> tuple[dict[Candidate, float], dict[Candidate, float]]:
    """Predictions of a 2 x 4 x 3 grid, and what candidates really do: half of it, and some noise."""
    random = np.random.default_rng(3)
    predicted = {
        Candidate(batch, delay, instances): best_rate(Candidate(batch, delay, instances), FIXED, {"p99": 60})
        for instances, batch, delay in product((1, 2), (1, 2, 4, 8), (0, 500, 2000))
    }
    return predicted, {c: 0.5 * rate * random.uniform(0.97, 1.03) for c, rate in predicted.items()}


def test_few_short_measurements_find_nearly_the_best_of_a_grid() -> None:
    predicted, truth = grid_and_truth()
    now, turns = Candidate(1, 0, 1), list[Candidate]()

    def measure(candidate: Candidate) -> float:
        turns.append(candidate)
        return truth[candidate]

    rates = compete(promising(predicted, 6), now, 2, measure)
    best = finalists(rates)[0]
    assert truth[best] >= 0.95 * max(truth.values()) and len(rates) == 4
    assert len(turns) == 4 + 3 and turns.count(now) == 2, "the better half goes on, beside the present one"
    assert rates[best] == [truth[best]] * 2 and rates[now] == [truth[now]] * 2


@pytest.mark.parametrize(("rounds", "turns"), [(1, [7]), (2, [7, 3]), (3, [7, 4, 3])])
def test_half_of_the_candidates_go_on_and_two_into_the_last_round(rounds: int, turns: list[int]) -> None:
    candidates = [Candidate(2**i, 0, 1) for i in range(1, 7)]
    rates = compete(candidates, Candidate(1, 0, 1), rounds, lambda candidate: float(candidate.batch))
    assert [sum(len(each) > number for each in rates.values()) for number in range(rounds)] == turns
    assert len(rates[candidates[-1]]) == rounds == len(rates[Candidate(1, 0, 1)])


def test_rounds_go_there_and_back() -> None:
    turns: list[int] = []
    candidates = [Candidate(batch, 0, 1) for batch in (2, 4)]

    def measure(candidate: Candidate) -> float:
        turns.append(candidate.batch)
        return 1.0

    compete(candidates, candidates[0], 2, measure)
    assert turns == [2, 4, 4, 2]


def test_candidates_that_can_be_no_good_are_not_measured() -> None:
    one, two, three, four = (Candidate(batch, 0, 1) for batch in (1, 2, 4, 8))
    predicted = {one: 50.0, two: 80.0, three: 90.0, four: 100.0}
    assert promising(predicted, 4) == [four, three, two] and promising(predicted, 2) == [four, three]
    assert promising({one: 0.0}, 4) == promising({}, 4) == []


def test_those_that_did_about_as_much_in_the_last_round_are_measured_in_full() -> None:
    one, two, three, four = (Candidate(batch, 0, 1) for batch in (1, 2, 4, 8))
    assert finalists({one: [80.0, 82.0], two: [97.0, 99.0], three: [101.0, 100.0], four: [300.0]}) == [
        three,
        two,
    ]
    assert finalists({one: [80.0], two: [100.0]}) == [two]
    assert finalists({one: [0.0]}) == []


class FakeBench:
    """Answers as a server with a capacity does, and keeps what it was asked."""

    def __init__(self, capacity: float, void: str = "") -> None:
        self.capacity, self.void, self.asked = capacity, void, list[float]()

    def measure(self, level: Level, windows: int, seconds: float, capacity: float = 0.0) -> Any:
        self.asked.append(level.value)
        rate = min(level.value, self.capacity)
        return SimpleNamespace(
            level=level,
            rate=rate,
            offered=level.value,
            failed=0,
            requests=100,
            latency={"p50": 10.0, "p99": 20.0},
            server=None,
            void=self.void,
            disturbed=bool(self.void),
            reasons=(),
        )


def plenty() -> float:
    return 1000.0


class FakeTrials(ModelTrials):
    def __init__(self) -> None:
        self._rules = slo.read_rules("p99<50ms")
        self.loads: list[Candidate] = []

    def apply(self, candidate: Candidate) -> None:
        self.loads.append(candidate)


def test_a_candidate_that_is_no_better_costs_two_probes() -> None:
    bench: Any = FakeBench(900)
    found = FakeTrials().rate(bench, Candidate(2, 0, 1), 1000, plenty, floor=1030)
    assert bench.asked == [1030, 1030]
    assert (found.rate, found.below) == (900, 1030) and found.points == []
    assert report.rows(State(Path(), {}, {}, {Candidate(2, 0, 1): found}), {})[0][3] == "< 1030"


def test_a_candidate_that_is_better_is_measured_further() -> None:
    bench: Any = FakeBench(1200)
    found = FakeTrials().rate(bench, Candidate(2, 0, 1), 900, plenty, floor=1030)
    assert 1140 < found.rate <= 1200 / 0.95 and found.below == 0
    assert min(bench.asked) == 1030 and len(bench.asked) < 16


def test_search_goes_down_until_something_keeps_the_objective() -> None:
    bench: Any = FakeBench(1000)
    found = FakeTrials().rate(bench, Candidate(2, 0, 1), 13_400, plenty)
    assert 900 < found.rate <= 1000 / 0.95 and found.why == "far below its closed loop"


def test_points_above_the_rate_that_was_confirmed_are_luck() -> None:
    bench: Any = FakeBench(1000)
    found = FakeTrials().rate(bench, Candidate(2, 0, 1), 1000, plenty)
    assert max(found.points)[0] == found.rate == pytest.approx(0.96 * bench.asked[-1])


def test_turn_that_something_else_has_disturbed_is_repeated_and_told() -> None:
    bench: Any = FakeBench(1000, void="the generator itself was late")
    turn = FakeTrials().turn(bench, Candidate(2, 0, 1), 8)
    assert len(bench.asked) == 2 and turn == (8.0, "the generator itself was late")
    quiet: Any = FakeBench(1000)
    assert FakeTrials().turn(quiet, Candidate(2, 0, 1), 8) == (8.0, "") and len(quiet.asked) == 1


class CountedCosts(FakeTrials):
    """Executions of 10 ms and 1 ms a row, twice that beside another one."""

    def __init__(self) -> None:
        super().__init__()
        self._options = SimpleNamespace(processes=1)  # type: ignore[assignment]
        self.measured: list[tuple[int, int]] = []
        self.workers = set[int]()

    def _alone(self, rows: int, concurrency: int, workers: Workers) -> Any:
        self.measured.append((rows, concurrency))
        self.workers.add(id(workers))
        us = (10_000 + 1000 * rows) * concurrency
        share = SimpleNamespace(requests=10, compute_input_us=0, compute_infer_us=us, compute_output_us=0)
        return SimpleNamespace(
            failed=0, requests=10, rate=100.0, server=share, service=SimpleNamespace(mean=us / 1e3 + 1)
        )


def test_instances_slow_each_other_down_as_far_as_they_do_with_full_batches() -> None:
    trials = CountedCosts()
    axes = Axes((2, 4, 8, 16), (0, 1000), (1, 2))
    costs = trials.costs(axes)
    assert trials.measured == [(1, 1), (4, 1), (16, 1), (16, 2)], "rows, in flight"
    assert costs.slowdown == {1: 1.0, 2: 2.0} and len(trials.workers) == 1, "one generator for all"
    predicted = dict.fromkeys(axes.candidates(), 100.0)
    assert promising(predicted, len(predicted))[0] == trials.loads[-1], "it need not be loaded again"


def test_search_of_a_rate_begins_below_what_a_closed_loop_did() -> None:
    bench: Any = FakeBench(1000)
    found = FakeTrials().rate(bench, Candidate(2, 0, 1), 1000, plenty)
    assert bench.asked[0] == 900 and 950 < found.rate <= 1000 / 0.95 and len(bench.asked) <= 12


def test_closed_loops_have_in_flight_what_half_of_the_objective_allows() -> None:
    trials = FakeTrials()  # p99<50ms
    assert trials.in_flight(1000) == 25 and trials.in_flight(1) == 1 and trials.in_flight(1e6) == 256


def test_requests_in_flight_grow_until_the_server_is_full() -> None:
    class Filling(FakeTrials):
        def closed_loop(self, bench: Any, candidate: Candidate, in_flight: int) -> Any:
            return SimpleNamespace(rate=min(100.0 * in_flight, 800.0))

    bench: Any = None
    found, result = Filling().filled(bench, Candidate(2, 0, 1), 1)  # p99<50ms: 800/s keep 20 in flight
    assert (found, result.rate) == (20, 800.0)


def test_finalist_has_to_beat_the_best_one_before_it(tmp_path: Path) -> None:
    one, two, three = Candidate(2, 0, 1), Candidate(4, 0, 1), Candidate(8, 0, 1)
    asked: list[tuple[Candidate, float]] = []

    def chosen(full: dict[Candidate, Measured], left: Any = plenty) -> Candidate | None:
        class Full(FakeTrials):
            def rate(
                self, _: Any, candidate: Candidate, expected: float, left: Any, floor: float = 0.0
            ) -> Measured:
                asked.append((candidate, floor))
                return full[candidate]

        asked.clear()
        state = State(tmp_path / "state", {}, {}, {}, {one: [100, 98], two: [95, 94], three: [10]})
        bench: Any = None
        return best_of(bench, Full(), state, left)

    assert chosen({one: Measured(90), two: Measured(85, below=93)}) == one
    assert asked == [(one, 0.0), (two, 90 / 0.97)]
    assert chosen({one: Measured(90), two: Measured(94)}) == two
    assert chosen({one: Measured(90), two: Measured(88)}) == one, "it kept more once, and not again"
    assert chosen({one: Measured(0), two: Measured(0), three: Measured(9)}) == three
    assert chosen({one: Measured(0), two: Measured(0), three: Measured(0)}) is None
    times = iter([10.0, 0.0])
    assert chosen({one: Measured(90)}, lambda: next(times)) == one, "there is no time for the second"


def test_pareto_front() -> None:
    points = {"a": [(100.0, 5.0), (200.0, 9.0)], "b": [(150.0, 4.0), (180.0, 20.0)]}
    assert pareto(points) == [(150, 4.0, "b"), (200, 9.0, "a")]


def test_configuration_is_written_as_text() -> None:
    text = report.pbtxt(configured(CONFIG, Candidate(4, 700, 1), THREADS), ["one", "two"])
    assert text.startswith("# one\n# two\n")
    message = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert message.max_batch_size == 4 and message.dynamic_batching.max_queue_delay_microseconds == 700
    assert list(message.input[0].dims) == [-1, 2] and message.instance_group[0].count == 1


def test_page_has_the_front_and_the_configuration() -> None:
    measured = {
        Candidate(4, 0, 1): Measured(90, 1, 2, 3, [(50, 1.0), (90, 2.0)]),
        Candidate(1, 0, 1): Measured(),
    }
    state = State(Path(), {}, {Candidate(4, 0, 1): 100.0}, measured, {Candidate(8, 0, 1): [70.0, 80.0]})
    lines = report.rows(state, {Candidate(4, 0, 1): "best"})
    assert lines[0][1:5] == ["100", "", "90", "1.00"] and lines[0][-1] == "best"
    assert [line[2:4] for line in lines[1:]] == [["75", ""], ["", "none"]], "all that was compared"
    made = report.page("t", ["s"], lines, measured, 'name: "<m>"')
    assert "Pareto front" in made and "&lt;m&gt;" in made


def test_prediction_far_off_is_not_shown() -> None:
    one, two = Candidate(4, 0, 1), Candidate(8, 0, 1)
    state = State(
        Path(), {}, {one: 38_530.0, two: 500.0}, {one: Measured(3490)}, {two: [400.0]}, {two: "late"}
    )
    assert [line[1] for line in report.rows(state, {})] == ["–", "500"]
    assert report.rows(state, {two: "present"})[1][-1] == "present, unsure"


def test_search_goes_on_with_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "new" / "analyze.json"
    key = {"model": "m", "axes": Axes((1, 4), (0,), (1,))}
    search = State(
        path,
        key,
        {Candidate(4, 0, 1): 10.0},
        {Candidate(4, 0, 1): Measured(9.0, points=[(9.0, 1.0)])},
        {Candidate(4, 0, 1): [8.0]},
    )
    search.save()
    again = resumed(path, key, Candidate)
    assert again.predicted == search.predicted and again.rates == search.rates
    assert again.measured[Candidate(4, 0, 1)].rate == 9.0
    assert resumed(path, {**key, "model": "other"}, Candidate).measured == {}
    path.write_text(json.dumps([]))
    assert resumed(path, key, Candidate).predicted == {}
    with pytest.raises(PerfError, match=r"cannot write .*: Not a directory"):
        resumed(path / "below" / "analyze.json", key, Candidate).save()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--slo", "p99<20 mss"], "cannot read"),
        (["--slo", "p99<20ms", "--batches", "1,x"], "'1,x' is no list of numbers"),
        (["--slo", "p99<20ms", "--shape", "X"], "is no shape"),
    ],
)
def test_a_wrong_command_line_has_a_status_of_its_own(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["-m", "m", "-u", "localhost:1", *words], {})
    except SystemExit as end:
        status = end.code
    assert status == 2 and says in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "m", "-u", "localhost:1", "--slo", "p99<20ms"], {}) == 1
    assert "http://localhost:1: cannot connect" in capsys.readouterr().err
