"""Text out of networks that recognise lines of it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Reading(NamedTuple):
    """What a network reads: classes INT64 [n], and the mean of their scores; 0 if it reads nothing."""

    classes: Array
    confidence: float


def ctc_best_path(scores: Array, blank: int = 0) -> Reading:
    """Return the best path of CTC: the likeliest class at each place, repeats and blanks left out.

    Args:
        scores: [places, classes] of one line.
        blank: the class that separates repeats.
    """
    best = scores.argmax(axis=1)
    kept = np.flatnonzero((best != blank) & (best != np.concatenate([[blank], best[:-1]])))
    confidence = float(scores[kept, best[kept]].mean()) if len(kept) else 0.0
    return Reading(best[kept].astype(np.int64), confidence)
