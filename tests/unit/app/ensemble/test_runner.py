"""The counters that a process keeps of the ensembles it ran."""

from app.core.observability.metrics_config import MetricsConfig
from app.ensemble.runner import EnsembleRunner
from tests.unit.ensembles import DECOUPLED, Models, ensemble, model, step, tensor

ONE_DECOUPLED = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), more=DECOUPLED)


async def test_distributions_are_kept_where_enabled() -> None:
    """Summaries of every request, and of a decoupled ensemble how long the first response took."""
    models = Models(e=ONE_DECOUPLED, a=model(more=DECOUPLED))
    report = models.runner.report(models.resolve("e"))
    assert (report.summaries, report.first_response) == ({}, None)
    models.runner = EnsembleRunner(models, reported=MetricsConfig(summaries=True, histograms=True))
    models.infer(tensor())
    asked = models.take("a")
    for fill in (1, 2):
        asked.answer(tensor("y", fill=fill), final=False)
    asked.answer()
    report = models.runner.report(models.resolve("e"))
    assert {name: summary.count for name, summary in report.summaries.items()} == dict.fromkeys(
        ("request", "queue", "compute_input", "compute_infer", "compute_output"), 1
    )
    assert report.first_response is not None
    assert report.first_response.bounds == (100, 500, 2000, 5000)
    assert sum(report.first_response.counts) == 1
    assert report.failures == {}
    assert models.runner.reports() == [("e", 1, report)]
