"""The families of drift, as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from app.core.drift.counts import FeatureFigures, VersionFigures
from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.drift_families import ADMISSION, DRIFT, DriftReading
from app.ingress.metrics.exposition import exposition
from app.ingress.metrics.family import read_families

WORST = FeatureFigures("x[3]", 2000.0, 0.3, 0.2, 0.5, 0.1), FeatureFigures("colour", 0.5, 0.01, 0.02)
FIGURES = VersionFigures("/models::m", 2, 500, 0.0, True, 2000.0, 1000.0, WORST, {"x": {"nan": 3}})


def found(reading: DriftReading) -> dict[tuple[str, ...], float]:
    """Values by name of sample, and by the values of its labels."""
    config = MetricsConfig()
    families = [
        *read_families(DRIFT, reading.labelled, config),
        *read_families(ADMISSION, reading.found, config),
    ]
    samples = [s for family in text_string_to_metric_families(exposition(families)) for s in family.samples]
    return {(sample.name.removesuffix("_total"), *sample.labels.values()): sample.value for sample in samples}


def test_figures_of_a_version_are_of_its_worst_features() -> None:
    values = found(DriftReading([FIGURES]))
    assert values.pop(("nereid_drift_reference_age_seconds", "m", "/models", "2")) > 1e9
    assert values == {
        ("nereid_drift_evidence", "max", "m", "/models", "2"): 2000,
        ("nereid_drift_evidence", "x[3]", "m", "/models", "2"): 2000,
        ("nereid_drift_evidence", "colour", "m", "/models", "2"): 0.5,
        ("nereid_drift_alarm", "m", "/models", "2"): 1,
        ("nereid_drift_distance", "x[3]", "psi", "m", "/models", "2"): 0.3,
        ("nereid_drift_distance", "x[3]", "js", "m", "/models", "2"): 0.2,
        ("nereid_drift_distance", "x[3]", "wasserstein", "m", "/models", "2"): 0.5,
        ("nereid_drift_distance", "x[3]", "ks", "m", "/models", "2"): 0.1,
        ("nereid_drift_distance", "colour", "psi", "m", "/models", "2"): 0.01,
        ("nereid_drift_distance", "colour", "js", "m", "/models", "2"): 0.02,
        ("nereid_drift_rows", "m", "/models", "2"): 500,
        ("nereid_data_quality", "nan", "m", "/models", "x", "2"): 3,
    }


def test_what_rules_have_found_is_counted_by_action() -> None:
    reading = DriftReading((), {("m", "x", "range", "reject"): 4})
    assert found(reading) == {("nereid_admission", "reject", "range", "m", "x"): 4}


def test_nothing_is_reported_where_nothing_is_watched() -> None:
    assert found(DriftReading()) == {}
