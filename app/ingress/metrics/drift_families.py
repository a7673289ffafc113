"""The metric families of models that are watched for drift: the manager's figures of the whole server."""

from collections.abc import Iterable, Iterator, Mapping
from time import time
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

from app.core.drift.counts import VersionFigures
from app.core.identifiers import name_of, namespace_of
from app.ingress.metrics.family import Condition, Family, Labels, gauge, value

Admitted = tuple[str, str, str, str]
"""A model, its input, what was found there, and what was done."""


class DriftReading(NamedTuple):
    """What the manager says of all versions that are watched, and what rules have found here."""

    versions: Iterable[VersionFigures] = ()
    admitted: Mapping[Admitted, int] = {}

    @property
    def labelled(self) -> list[tuple[Labels, VersionFigures]]:
        """The versions with their labels."""
        return [(_model(each.model, version=str(each.version)), each) for each in self.versions]

    @property
    def found(self) -> list[tuple[Labels, int]]:
        """What rules have found, with labels."""
        return [
            (_model(model, tensor=tensor, kind=kind, action=action), count)
            for (model, tensor, kind, action), count in sorted(self.admitted.items())
        ]


def _model(identifier: str, **more: str) -> Labels:
    namespace = namespace_of(identifier)
    own = {"namespace": namespace} if namespace else {}
    return dict(sorted({"model": name_of(identifier), **own, **more}.items()))


MOST: Final = "max"
"""The label `feature` of the greatest evidence of all features."""


def _evidence(name: str, labels: Labels, version: VersionFigures) -> Iterator[Sample]:
    yield Sample(name, _labelled(labels, feature=MOST), version.evidence)
    for feature in version.worst:
        yield Sample(name, _labelled(labels, feature=feature.name), feature.evidence)


def _distances(name: str, labels: Labels, version: VersionFigures) -> Iterator[Sample]:
    for feature in version.worst:
        for metric in ("psi", "js", "wasserstein", "ks"):
            found = getattr(feature, metric)
            if found is not None:
                yield Sample(name, _labelled(labels, feature=feature.name, metric=metric), found)


def _quality(name: str, labels: Labels, version: VersionFigures) -> Iterator[Sample]:
    for tensor, kinds in version.quality.items():
        for kind, number in kinds.items():
            yield Sample(name, _labelled(labels, tensor=tensor, kind=kind), number)


def _labelled(labels: Labels, **more: str) -> dict[str, str]:
    return dict(sorted({**labels, **more}.items()))


_WATCHED: Final = Condition[VersionFigures]("models with a reference", lambda _: True)
DRIFT: Final[tuple[Family[VersionFigures], ...]] = (
    Family(
        "nereid_drift_evidence",
        "gauge",
        "Evidence that the rows have changed, of the 8 features with the most, and `max`: an alarm from "
        "1 / alpha of `drift.yaml` on, 1000 by default",
        _evidence,
        only=_WATCHED,
    ),
    gauge(
        "nereid_drift_alarm",
        "Whether a feature has changed: 1 from the alarm until nothing speaks for it any more",
        lambda version: int(version.alarmed),
        _WATCHED,
    ),
    Family(
        "nereid_drift_distance",
        "gauge",
        "Distance of the recent rows from the reference, of the 8 features with the most evidence",
        _distances,
        only=_WATCHED,
    ),
    Family(
        "nereid_drift_rows",
        "counter",
        "Rows that were counted since the reference is used",
        value(lambda version: version.rows),
        only=_WATCHED,
    ),
    gauge(
        "nereid_drift_reference_age_seconds",
        "Age of the reference",
        lambda version: max(time() - version.made, 0.0),
        _WATCHED,
    ),
    Family(
        "nereid_data_quality",
        "counter",
        "Of the counted rows, values that are remarkable by themselves: nan, range, new, zeros, shape",
        _quality,
        only=_WATCHED,
    ),
)
"""The families of a version that is watched."""


def _admission(name: str, labels: Labels, count: int) -> Iterator[Sample]:
    yield Sample(name, dict(labels), count)


ADMISSION: Final[tuple[Family[int], ...]] = (
    Family(
        "nereid_admission",
        "counter",
        "Requests that a rule of `drift.yaml` has found, by what was done with them",
        _admission,
        only=Condition[int]("models with rules for inputs", lambda _: True),
    ),
)
"""The family of what rules have found in this ingress."""
