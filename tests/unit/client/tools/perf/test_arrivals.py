"""Moments of an open loop."""

from pathlib import Path

import numpy as np
import pytest

from nereid_client.tools.perf.generator.arrivals import dealt, draw, read_intervals, repeated


def test_constant_arrivals_are_equally_far_apart() -> None:
    moments = draw("constant", 250, 2, 0)
    assert len(moments) == 500 and set(np.diff(moments)) == {4_000_000}


def test_poisson_arrivals_have_the_rate_and_pauses_of_chance() -> None:
    moments = draw("poisson", 1000, 20, 1)
    pauses = np.diff(moments)
    assert len(moments) == pytest.approx(20_000, rel=0.03) and moments[-1] < 20e9
    assert pauses.std() == pytest.approx(pauses.mean(), rel=0.05)  # as an exponential distribution has them
    assert (draw("poisson", 1000, 20, 1) == moments).all() and len(draw("poisson", 1000, 20, 2)) != len(
        moments
    )


def test_intervals_of_a_file_are_repeated(tmp_path: Path) -> None:
    (tmp_path / "pauses").write_text("1000\n3000\n")
    moments = repeated(read_intervals(tmp_path / "pauses"), 0.01)
    assert moments.tolist() == [1_000_000, 4_000_000, 5_000_000, 8_000_000, 9_000_000]


@pytest.mark.parametrize("text", ["", "0\n0", "-1\n5", "soon"])
def test_intervals_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pauses").write_text(text)
    with pytest.raises(ValueError):
        read_intervals(tmp_path / "pauses")


def test_generators_share_the_moments() -> None:
    hands = dealt(draw("constant", 10, 1, 0), 3)
    assert [len(hand) for hand in hands] == [4, 3, 3]
    assert sorted(np.concatenate(hands)) == draw("constant", 10, 1, 0).tolist()
