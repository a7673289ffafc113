"""Rows of a tape: older ones calibrate, newer ones check, none twice."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nereid.optimise.trials.rows import OptimiseError, _few, _Seen, choose, enough, inputs_of
from nereid_client.tape.reader import Tape
from tests.unit.nereid.optimise.conftest import ROWS


def test_halves_and_duplicates(small: Path) -> None:
    tape = Tape(small / "tape")
    found = choose(tape, "small", "1", None, 50, 1000)
    assert len(found.calibration) == 50 and len(found.check) == ROWS // 2
    assert found.skipped == {"the same inputs as an earlier one": 1}
    assert 1 < found.classes <= 5
    arrived = {row.key: row.arrived_ns for row in tape.rows(bodies=False)}
    assert max(arrived[key] for key in found.calibration) < min(arrived[key] for key in found.check)
    assert found == choose(tape, "small", "1", None, 50, 1000)
    assert found.digest != choose(tape, "small", "1", None, 49, 1000).digest


def test_inputs_are_those_of_the_keys(small: Path) -> None:
    found = choose(Tape(small / "tape"), "small", "1", None, 5, 5)
    read = dict(inputs_of(small / "tape", "small", found.check))
    assert tuple(read) == found.check
    assert all(each["x"].shape == (1, 3, 8, 8) and each["x"].dtype == np.float32 for each in read.values())


def test_classes_are_kept_in_proportion() -> None:
    rows = [_Seen(str(n), 0 if n % 10 else n % 3 + 1) for n in range(1000)]
    for most in (50, 100, 500):
        share = Counter(each.kind for each in _few(rows, most))[0] / most
        assert share == pytest.approx(0.9, abs=0.03)
    assert _few(rows, 2000) == rows


def test_too_few_rows_are_told_beforehand() -> None:
    assert "1,379 without one that differs" in enough(1000, 0.995)
    assert not enough(1379, 0.995)


def test_a_tape_without_rows_of_the_model(small: Path) -> None:
    with pytest.raises(OptimiseError, match="has 0 rows of 'other' that can be used"):
        choose(Tape(small / "tape"), "other", "1", None, 5, 5)
