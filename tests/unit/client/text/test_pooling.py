"""Pooling and scores against slow references."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nereid_client.text import POOLINGS, cosine, normalise, pool, sigmoid

Array = npt.NDArray[Any]

MASKS = {
    "behind": np.array([[1, 1, 1, 0], [1, 0, 0, 0]]),
    "in front": np.array([[0, 1, 1, 1], [0, 0, 0, 1]]),
    "none": np.array([[1, 1, 1, 1]]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_pooling_is_that_of_a_slow_reference(mask: Array, dtype: type) -> None:
    hidden: Array = np.random.default_rng(0).standard_normal((*mask.shape, 5)).astype(dtype)
    hidden[mask == 0] = 1000  # what is behind the mask must not show
    tokens = [row[known != 0].astype(np.float64) for row, known in zip(hidden, mask, strict=True)]
    expected = {
        "mean": [row.mean(axis=0) for row in tokens],
        "cls": [row[0] for row in tokens],
        "last": [row[-1] for row in tokens],
    }
    assert set(expected) == set(POOLINGS)
    for how, vectors in expected.items():
        found = pool(hidden, mask, how)
        assert found.dtype == np.float32
        assert found == pytest.approx(np.array(vectors), abs=1e-5)


def test_text_without_tokens_has_a_mean_of_zeros() -> None:
    assert pool(np.ones((1, 2, 3), np.float32), np.zeros((1, 2))).tolist() == [[0, 0, 0]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown pooling 'max': expected one of mean, cls, last"):
        pool(np.ones((1, 2, 3)), np.ones((1, 2)), "max")
    for mask in (np.ones((1, 3)), np.ones((2, 2)), np.ones(2)):
        with pytest.raises(ValueError, match="do not fit"):
            pool(np.ones((1, 2, 3)), mask)


def test_vectors_of_length_one() -> None:
    found = normalise(np.array([[3, 4], [0, 0]]))
    assert found == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))
    assert found.dtype == np.float32


def test_one_query_is_compared_with_all_documents() -> None:
    documents = np.array([[2, 0], [0, 5], [-1, 0], [0, 0]])
    for query in (np.array([7, 0]), np.array([[7, 0]])):
        assert cosine(query, documents).tolist() == [[1], [0], [-1], [0]]


def test_sigmoid_of_any_logit() -> None:
    logits = np.array([[-1e30], [-2], [0], [2], [1e30]])
    expected = [[0], [1 / (1 + math.exp(2))], [0.5], [1 / (1 + math.exp(-2))], [1]]
    assert sigmoid(logits) == pytest.approx(np.array(expected))
