"""What a process tells of the ensembles that it ran."""

from app.core.metrics_config import MetricsConfig
from app.ensemble.runner import EnsembleRunner
from tests.unit.ensembles import DECOUPLED, Models, ensemble, model, step, tensor

ONE_DECOUPLED = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), more=DECOUPLED)


async def test_distributions_where_they_are_wanted() -> None:
    """Summaries of every request, and of a decoupled ensemble how long the first response took."""
    models = Models(e=ONE_DECOUPLED, a=model(more=DECOUPLED))
    assert models.runner.statistics(models.resolve("e"))[2] == {"cached": False}
    models.runner = EnsembleRunner(models, reported=MetricsConfig(summaries=True, histograms=True))
    models.infer(tensor())
    asked = models.take("a")
    for fill in (1, 2):
        asked.answer(tensor("y", fill=fill), final=False)
    asked.answer()
    found = models.runner.statistics(models.resolve("e"))[2]
    assert {name: count for name, (count, _, _) in found["summaries"].items()} == dict.fromkeys(
        ("request", "queue", "compute_input", "compute_infer", "compute_output"), 1
    )
    bounds, counts, _ = found["first_response"]
    assert (bounds, sum(counts)) == ((100, 500, 2000, 5000), 1)
    ((name, version, _, failures, reported),) = models.runner.report()
    assert (name, version, failures, reported) == ("e", 1, {}, found)
