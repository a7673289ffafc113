"""Scores of a classifier to its best classes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Ranked(NamedTuple):
    """A class by its number, its score, and its label; "" without labels."""

    number: int
    score: float
    label: str


def top_k(scores: npt.NDArray[Any], k: int = 1, labels: Sequence[str] = ()) -> list[Ranked]:
    """Return the k best classes of scores [classes], the best first, of equal ones the first."""
    order = np.argsort(-scores, kind="stable")[:k]
    return [Ranked(int(i), float(scores[i]), labels[i] if i < len(labels) else "") for i in order]
