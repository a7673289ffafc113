"""The command `nereid plan`: how it measures, and what it refuses."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nereid_client.tools.plan import calibration
from nereid_client.tools.plan.arrivals import by_chance
from nereid_client.tools.plan.calibration import Calibration, calibrate
from nereid_client.tools.plan.command import main
from nereid_client.tools.plan.simulation import Replica, latencies

EXECUTION_S = 0.010
TRUTH = Replica([0.0, 1.25 * EXECUTION_S], batch=0)
"""A model that takes a quarter longer than its executions are counted to."""


class FakeBench:
    """Answers as `TRUTH` would, but for a pause in the first open loop."""

    pauses = 1
    longer = 1.0
    """Executions of an open loop by those of a closed one."""

    def __init__(self, options: Any, progress: Any, workers: Any = None) -> None:
        pass

    def __enter__(self) -> "FakeBench":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, level: Any, number: int, seconds: float, capacity: float = 0.0) -> Any:
        if level.kind == "rate":
            times, rows, _ = by_chance(level.value, 5000, seed=9)
            p99 = 1e3 * float(np.percentile(latencies(TRUTH.scaled(self.longer), 1, times, rows), 99))
            FakeBench.pauses -= 1
            return self._result(level.value, p99 * (20 if FakeBench.pauses >= 0 else 1))
        rate = TRUTH.capacity(1) if level.value > 1 else 1 / (1.25 * EXECUTION_S)
        return self._result(rate, 0.0)

    def _result(self, rate: float, p99: float) -> Any:
        us = 1e6 * EXECUTION_S
        server = SimpleNamespace(
            requests=10, queue_us=0.0, compute_input_us=0.0, compute_infer_us=us, compute_output_us=0.0
        )
        return SimpleNamespace(
            rate=rate,
            latency={"p99": p99},
            service=SimpleNamespace(mean=1e3 * EXECUTION_S),
            server=server,
            void="",
            reasons=(),
            errors={},
        )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Calibration]:
    monkeypatch.setattr(calibration, "Bench", FakeBench)
    monkeypatch.setattr(calibration, "replace", lambda options, **_: options)
    config = {"max_batch_size": 0, "instance_group": [{"count": 1}]}
    options: Any = SimpleNamespace(processes=1, batch=1)
    progress: Any = None
    return lambda: calibrate(config, options, 1, 1, progress)


def test_simulation_is_corrected_by_what_is_measured(measured: Callable[[], Calibration]) -> None:
    found = measured()
    assert found.saturation == pytest.approx(80) and found.slower == pytest.approx(1.25)
    assert found.replica.seconds == pytest.approx([0.0125, 0.0125], rel=0.03), "scaled by it"
    assert found.longer == pytest.approx(1.0, abs=0.03), "the loop with the pause was repeated"
    assert found.later == 1.0


def test_latencies_at_another_load_are_those_of_longer_executions(
    measured: Callable[[], Calibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executions that are a tenth longer make p99 half as long again at 80 % of what fits, less at 60 %."""
    monkeypatch.setattr(FakeBench, "longer", 1.1)
    found = measured()
    assert found.p99_ms > 1.4 * found.simulated_ms
    times, rows, _ = by_chance(0.6 * found.saturation, 50_000, seed=3)
    said, true, plain = (
        np.percentile(latencies(replica, 1, times, rows), 99)
        for replica in (found.replica, TRUTH.scaled(1.1), TRUTH)
    )
    with_one_factor = plain * found.p99_ms / found.simulated_ms
    assert found.later * said == pytest.approx(true, rel=0.1)
    assert abs(said - true) < abs(with_one_factor - true) / 2


def test_what_executions_do_not_explain_is_a_factor(
    measured: Callable[[], Calibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBench, "pauses", 3)
    found = measured()
    assert found.longer == pytest.approx(1.2, abs=0.02) and found.later > 1.1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--slo", "p99<20ms"], "give either --rate, today's requests a second, or --tape"),
        (["--slo", "p99<20ms", "--rate", "5", "--tape", "x"], "give either --rate"),
        (["--slo", "p99<20 mss", "--rate", "5"], "cannot read"),
        (["--slo", "p99<20ms", "--rate", "-5"], "'-5' is no number above 0"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["-m", "m", "-u", "localhost:1", *words])
    except SystemExit as end:
        status = end.code
    assert status == 2 and says in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "m", "-u", "localhost:1", "--slo", "p99<20ms", "--rate", "5"]) == 1
    assert "http://localhost:1: cannot connect" in capsys.readouterr().err
