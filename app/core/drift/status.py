"""The drift of a model, as the API reports it."""

import msgspec

from app.core.drift.counts import RowCounts
from app.core.drift.distances import Distances
from app.core.drift.reference import Feature
from app.core.drift.spec import DriftSpec


class FeatureStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature.

    Attributes:
        feature: its bins or categories, and the reference's counts.
        tensor: the input or output that it is of.
        counts: rows of late, by the same cells.
        evidence: that it has changed; an alarm from 1 / alpha on.
        alarmed: whether that is so.
        distances: of the rows of late; None without any.
    """

    feature: Feature
    tensor: str
    is_output: bool
    counts: tuple[int, ...]
    evidence: float
    alarmed: bool
    distances: Distances | None = None


class DriftStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The drift of one version of a model.

    Attributes:
        model, version: which.
        rules: of `drift.yaml`.
        made, source, reference_rows: of the reference of inputs.
        rows: counted since the reference is used.
        recent: rows that `features` show: the last ten to twenty thousand.
        since: when the alarm began, Unix seconds; 0 for none.
        confidence: the mean of the greatest share of classes of the recent rows; None without classes.
        quality: rows by tensor, then kind: `nan`, `range`, `new`, `zeros`, `shape`.
        stale: why the reference does not fit what is served; "" if nothing is known against it.
    """

    model: str
    version: int
    rules: DriftSpec
    made: float
    source: str
    reference_rows: int
    rows: int
    recent: int
    features: tuple[FeatureStatus, ...]
    since: float = 0.0
    confidence: float | None = None
    quality: dict[str, dict[str, int]] = {}
    stale: str = ""


def confidence(counts: RowCounts) -> float | None:
    """Return the mean of the greatest share of classes; None without classes."""
    return counts.confidence / 1e6 / counts.classified if counts.classified else None
