"""Scores of a classifier to its best classes."""

from collections.abc import Sequence
from typing import NamedTuple

from nereid_client.vision.arrays import Array, as_numpy


class Ranked(NamedTuple):
    """A class by its number, its score, and its label; "" without labels."""

    number: int
    score: float
    label: str


def top_k(scores: Array, k: int = 1, labels: Sequence[str] = ()) -> list[Ranked]:
    """Return the k best classes of scores [classes], the best first, of equal ones the first."""
    values = as_numpy(scores)
    order = (-values).argsort(kind="stable")[:k]
    return [Ranked(int(i), float(values[i]), labels[i] if i < len(labels) else "") for i in order]
