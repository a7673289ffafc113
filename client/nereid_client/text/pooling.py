"""Hidden states of encoders to vectors, vectors to scores."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _mean(hidden: Array, mask: Array) -> Array:
    weights = mask.astype(np.float32)
    # A text without tokens has a vector of zeros.
    counts = np.maximum(weights.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.einsum("nlw,nl->nw", hidden, weights / counts), np.float32)


def _cls(hidden: Array, mask: Array) -> Array:
    return _taken(hidden, mask.argmax(axis=1))


def _last(hidden: Array, mask: Array) -> Array:
    return _taken(hidden, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1))


def _taken(hidden: Array, places: Array) -> Array:
    return hidden[np.arange(len(hidden)), places].astype(np.float32)


POOLINGS: Final[dict[str, Callable[[Array, Array], Array]]] = {"mean": _mean, "cls": _cls, "last": _last}
"""By their names in configurations: the mean of the tokens (most sentence encoders), the first (BGE), the
last (decoders)."""


def pool(hidden: Array, mask: Array, how: str = "mean") -> Array:
    """Return a vector for each text: FP32 [texts, width].

    Args:
        hidden: [texts, longest, width], FP32 or FP16.
        mask: [texts, longest], not 0 for tokens; padding may be behind them or in front.
        how: one of POOLINGS.

    Raises:
        ValueError: there is no such pooling, or the shapes do not belong together.
    """
    if how not in POOLINGS:
        raise ValueError(f"unknown pooling '{how}': expected one of {', '.join(POOLINGS)}")
    if hidden.ndim != 3 or hidden.shape[:2] != mask.shape or not mask.shape[1]:
        raise ValueError(f"hidden states of {hidden.shape} do not fit a mask of {mask.shape}")
    return POOLINGS[how](hidden, mask != 0)


def normalise(vectors: Array) -> Array:
    """Return vectors [.., width] of length 1, as FP32; a vector of zeros stays one."""
    values = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / np.where(lengths > 0, lengths, 1), np.float32)


def cosine(queries: Array, documents: Array) -> Array:
    """Return how alike vectors are, from -1 to 1: FP32 [.., 1] of two [.., width], row by row.

    One query may stand for all documents: [width] or [1, width].
    """
    alike = (normalise(queries) * normalise(documents)).sum(axis=-1, keepdims=True)
    return np.asarray(np.clip(alike, -1, 1), np.float32)


def sigmoid(logits: Array) -> Array:
    """Return scores from 0 to 1 of what a cross-encoder says, of the same shape: FP32."""
    # Without overflow of large negative values.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(logits, np.float32))), np.float32)
