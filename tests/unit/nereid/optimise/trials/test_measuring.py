"""How long two forms take for the same rows."""

import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from app.core.tensors import Tensor
from nereid.optimise.trials.forms import CANDIDATE, PRESENT
from nereid.optimise.trials.measuring import Pair, Trial
from nereid.optimise.trials.rows import Array
from nereid.optimise.trials.verdict import Wanted
from nereid_client.comparison.rules import ComparisonRules

INPUTS = {"x": np.zeros((1, 2), np.float32)}


class Forms:
    """Two forms that answer within half a millisecond each, but for one request that the machine holds up."""

    megabytes = {PRESENT: 1.0, CANDIDATE: 1.0}

    def __init__(self, late: int) -> None:
        self.now, self.asked, self._late = 100.0, 0, late

    def ask(self, name: str, inputs: Mapping[str, Array]) -> tuple[Tensor, ...]:
        self.asked += 1
        self.now += 1.0 if self.asked == self._late else 0.0005
        return (Tensor("y", "FP32", (1, 2), bytes(8)),)


@pytest.mark.parametrize("late", range(7))
def test_a_request_that_was_held_up_leaves_the_repetitions_as_they_are(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = Forms(late)
    clock: Any = lambda: forms.now  # noqa: E731
    monkeypatch.setattr(time, "perf_counter", clock)
    measured = Trial(cast(Pair, forms), ComparisonRules(), Wanted(0.9, 0.99, 1.0), 8, lambda _: None, clock)
    seen = measured.run(iter([(str(row), INPUTS) for row in range(8)]))
    # To warm up, for the shape, 8 rows of each form as often as a tick needs and once more, for the noise.
    assert forms.asked == 6 + 2 + 2 * 8 * (5 + 1) + 1
    assert seen.present_ms == pytest.approx(0.5) and seen.candidate_ms == pytest.approx(0.5)
