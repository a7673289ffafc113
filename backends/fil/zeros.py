"""LightGBM's `zero_as_missing`, which treelite does not know: it would compare zeros with thresholds.

A model with it is read as if it took NaN for missing values, and its rows have NaN in the place of zeros.
Source: `NumericalDecision` and `Tree::ToString` of LightGBM (include/LightGBM/tree.h, src/io/tree.cpp).
"""

import re
from typing import Final

import numpy as np

from app.core.errors import unsupported
from backends.fil.forest import Array, Forest

_DECISIONS: Final = re.compile(rb"^(decision_type=)([\d ]*)", re.MULTILINE)
_CATEGORICAL: Final = 1
_MISSING: Final = 12
"""Bits of a decision that say which values are missing."""
_ZERO, _NAN = 4, 8
_LARGEST_ZERO: Final = np.float32(1e-35)


def takes_zeros_for_missing(text: bytes) -> bool:
    """Return whether a model of LightGBM takes zeros for missing values.

    Raises:
        InferError: UNSUPPORTED if only some of its tests do, and others take NaN.
    """
    found = {decision & _MISSING for match in _DECISIONS.finditer(text) for decision in _numeric(match[2])}
    if {_ZERO, _NAN} <= found:
        raise unsupported(
            "some trees of the model take zeros for missing values, others do not (zero_as_missing)"
        )
    return _ZERO in found


def with_nan(text: bytes) -> bytes:
    """Return the text of the same model, which takes NaN for missing values."""
    return _DECISIONS.sub(_changed, text)


def _numeric(decisions: bytes) -> list[int]:
    return [decision for decision in map(int, decisions.split()) if not decision & _CATEGORICAL]


def _changed(match: "re.Match[bytes]") -> bytes:
    decisions = [int(decision) for decision in match[2].split()]
    changed = [
        each ^ (_ZERO | _NAN) if not each & _CATEGORICAL and each & _MISSING == _ZERO else each
        for each in decisions
    ]
    return match[1] + b" ".join(b"%d" % decision for decision in changed)


class MissingZeros:
    """Puts NaN in the place of zeros, but for features that are categories, of which 0 is one."""

    def __init__(self, forest: Forest) -> None:
        tested = [int(forest.feature[node]) for node in forest.categories]
        self._numeric = np.isin(np.arange(forest.features), tested, invert=True)

    def __call__(self, rows: Array) -> Array:
        """Return float32[n, features] for float32[n, features], which is not changed."""
        return np.where((np.abs(rows) <= _LARGEST_ZERO) & self._numeric, np.float32(np.nan), rows)
