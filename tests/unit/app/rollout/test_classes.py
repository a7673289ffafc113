"""The classes of answers."""

import numpy as np
import pytest

from app.core.rollout.outcomes import OTHER_CLASS, VersionOutcomes
from app.core.tensors import RegionSlice, Tensor
from app.rollout.classes import classes_of

SCORES = Tensor.from_array("scores", np.array([[0.1, 0.9], [0.8, 0.2]], np.float32))
LABEL = Tensor.from_array("label", np.array([["cat"], ["dog"]], object))
NUMBER = Tensor.from_array("number", np.array([[3], [4]], np.int64))
VALUE = Tensor.from_array("value", np.array([[0.5], [0.7]], np.float32))


@pytest.mark.parametrize(
    ("outputs", "wanted", "found"),
    [
        ((VALUE, SCORES), "*", ["1", "0"]),
        ((VALUE, LABEL, SCORES), "*", ["cat", "dog"]),
        ((NUMBER,), "*", ["3", "4"]),
        ((SCORES, LABEL), "label", ["cat", "dog"]),
        ((SCORES,), "label", []),
        ((VALUE,), "*", []),
        ((Tensor("scores", "FP32", (2, 2), b"odd"),), "*", []),
        ((Tensor("scores", "FP32", (2, 2), RegionSlice("r", 0, 16)),), "*", []),
    ],
)
def test_a_row_has_the_class_of_an_output(outputs: tuple[Tensor, ...], wanted: str, found: list[str]) -> None:
    assert classes_of(outputs, wanted, True) == found


def test_a_model_without_batches_answers_with_one_row() -> None:
    scores = Tensor.from_array("scores", np.array([0.1, 0.2, 0.7]))
    assert classes_of((scores,), "*", False) == ["2"]


def test_classes_beyond_a_bound_are_one() -> None:
    outcomes = VersionOutcomes()
    outcomes.add_classes(str(number) for number in range(300))
    assert len(outcomes.classes) == 257 and outcomes.classes[OTHER_CLASS] == 44
