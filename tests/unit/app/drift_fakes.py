"""Drift for the fakes of services."""

import numpy as np

from app.core.drift.building import side
from app.core.drift.counts import KnownReference
from app.core.drift.reference import Reference
from app.core.drift.spec import DriftSpec
from app.core.drift.status import DriftStatus


def drift_status(model: str = "m", version: str = "") -> DriftStatus:
    """Return that of a version without rows."""
    return DriftStatus(model, int(version or 1), DriftSpec(), 0.0, "rows", 1000, 0, 0, ())


def reference(name: str = "IN", width: int = 2, outputs: str = "", rows: int = 10_000) -> Reference:
    """Return that of normal inputs, and of shares of three classes where there are outputs."""
    rng = np.random.default_rng(0)
    inputs, _ = side({name: [rng.normal(size=(rows, width))]}, 1.0, "rows")
    if not outputs:
        return Reference(inputs)
    return Reference(inputs, {"1": side({outputs: [rng.dirichlet([1, 1, 1], rows)]}, 1.0, "rows")[0]})


def known(reference: Reference, model: str = "m", version: int = 1, digest: str = "d") -> KnownReference:
    """Return a reference as the manager tells it."""
    return KnownReference(model, version, digest, reference.of(version))
