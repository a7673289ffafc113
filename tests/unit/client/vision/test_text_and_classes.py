"""CTC against a slow reference, and the best classes."""

import numpy as np
import pytest

from nereid_client.vision import Ranked, ctc_best_path, top_k


def reference(best: list[int], blank: int) -> list[int]:
    """Merge repeats, then drop blanks."""
    merged = [value for place, value in enumerate(best) if place == 0 or value != best[place - 1]]
    return [value for value in merged if value != blank]


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize("seed", range(20))
def test_best_path_is_that_of_a_slow_reference(seed: int, blank: int) -> None:
    scores = np.random.default_rng(seed).random((30, 4))
    found = ctc_best_path(scores, blank)
    assert found.classes.tolist() == reference(scores.argmax(axis=1).tolist(), blank)


def test_confidence_is_that_of_the_first_of_repeats() -> None:
    scores = np.zeros((6, 3))
    for place, (value, score) in enumerate([(1, 0.6), (1, 0.9), (0, 1), (1, 0.8), (2, 0.5), (0, 1)]):
        scores[place, value] = score
    found = ctc_best_path(scores)
    assert found.classes.tolist() == [1, 1, 2]
    assert found.confidence == pytest.approx((0.6 + 0.8 + 0.5) / 3)


def test_line_without_text() -> None:
    found = ctc_best_path(np.eye(3)[[0, 0, 0]])
    assert (found.classes.tolist(), found.confidence) == ([], 0.0)
    assert found.classes.dtype == np.int64


def test_best_classes() -> None:
    scores = np.array([0.1, 0.4, 0.1, 0.4])
    assert top_k(scores, 3, ["a", "b"]) == [Ranked(1, 0.4, "b"), Ranked(3, 0.4, ""), Ranked(0, 0.1, "a")]
    assert len(top_k(scores, 9)) == 4
