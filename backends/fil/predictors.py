"""Answering rows by a forest: treelite's own inference, or ONNX Runtime's where both give the same."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import treelite
import treelite.gtil

from backends.fil.forest import Array, Forest
from backends.signature import Signature

if TYPE_CHECKING:
    from backends.onnxruntime.bound import BoundRuns

logger = logging.getLogger(__name__)

_PART: Final = 1024
_MAX_PROBES: Final = 1024
_PROBE_STEPS: Final = 50_000_000
_MISSING: Final = 0.1
"""Share of the probes' features that are missing."""


class Predictor(Protocol):
    """A forest, ready to answer."""

    def __call__(self, rows: Array) -> Array:
        """Answer rows, float32[n, features], by float32[n, classes]."""

    def bound(self, signature: Signature) -> "BoundRuns | None":
        """Return runs of few rows for one instance, with tensors as a request has them; None for none."""


class Gtil:
    """Treelite's General Tree Inference Library, by which Triton answers on a CPU.

    It uses one thread: Ray sets OMP_NUM_THREADS to 1, beyond which treelite refuses to go, and a barrier of
    OpenMP takes milliseconds on busy CPUs.
    """

    def __init__(self, model: treelite.Model) -> None:
        self._model = model

    def __call__(self, rows: Array) -> Array:
        answer = treelite.gtil.predict(self._model, rows, nthread=1)
        return np.asarray(answer[:, 0, :], np.float32)

    def bound(self, signature: Signature) -> None:
        return None


class InParts:
    """Has several threads answer many rows, each a part, by a predictor that uses one thread.

    Attributes:
        predictor: that predictor.
    """

    def __init__(self, predictor: Predictor, threads: int) -> None:
        self.predictor = predictor
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "trees")

    def __call__(self, rows: Array) -> Array:
        parts = min(self._threads, len(rows) // _PART)
        if parts < 2:
            return self.predictor(rows)
        return np.concatenate(list(self._pool.map(self.predictor, np.array_split(rows, parts))))

    def bound(self, signature: Signature) -> "BoundRuns | None":
        return self.predictor.bound(signature)


def fastest(name: str, model: treelite.Model, forest: Forest, threads: int) -> Predictor:
    """Return ONNX Runtime's predictor, if it is installed and agrees with treelite's; else treelite's.

    Args:
        name: of the model, for the log.
        model: the model.
        forest: its trees.
        threads: for batches of many rows.
    """
    chosen = _checked(name, Gtil(model), forest)
    return InParts(chosen, threads) if threads > 1 else chosen


def _checked(name: str, reference: Gtil, forest: Forest) -> Predictor:
    converted = _converted(forest)
    if converted is None:
        return reference
    rows = probes(forest)
    if agree(converted(rows), reference(rows)):
        return converted
    logger.warning("model '%s': ONNX Runtime answers its trees differently, so treelite answers them", name)
    return reference


def _converted(forest: Forest) -> Predictor | None:
    try:
        from backends.fil.onnx_trees import OnnxTrees, is_expressible
    except ImportError:
        return None  # ONNX Runtime, or onnx, is not installed
    return OnnxTrees(forest) if is_expressible(forest) else None


def agree(found: Array, expected: Array) -> bool:
    """Return whether answers differ by no more than the rounding of sums of float32."""
    largest = float(np.max(np.abs(expected), initial=0))
    return np.allclose(found, expected, rtol=1e-5, atol=1e-6 * largest, equal_nan=True)


def probes(forest: Forest) -> Array:
    """Return rows that try each threshold: the next value below, the threshold itself, and the next above.

    A feature takes its values in an order of its own; a tenth of them is missing.
    """
    random = np.random.default_rng(0)
    inner = np.flatnonzero(forest.left >= 0)
    order = inner[np.argsort(forest.feature[inner], kind="stable")]
    features, starts = np.unique(forest.feature[order], return_index=True)
    values = [_around(part) for part in np.split(forest.threshold[order], starts[1:])]
    longest = max((len(value) for value in values), default=1)
    affordable = _PROBE_STEPS // max(len(forest.tree), forest.features, 1)
    rows = np.zeros((max(16, min(2 * longest, _MAX_PROBES, affordable)), forest.features), np.float32)
    for feature, value in zip(features, values, strict=False):
        rows[:, feature] = np.resize(random.permutation(value), len(rows))
    rows[random.random(rows.shape) < _MISSING] = np.nan
    return rows


def _around(thresholds: Array) -> Array:
    at = np.unique(thresholds.astype(np.float32))
    below, above = (np.nextafter(at, np.float32(end)) for end in (-np.inf, np.inf))
    return np.concatenate([below, at, above])
