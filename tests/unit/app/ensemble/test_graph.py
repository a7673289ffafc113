"""The graph of an ensemble: its steps, what they read, and what pruning leaves."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.ensemble import validate_ensemble
from app.core.errors import InferError
from app.ensemble.graph import EnsembleGraph
from tests.unit.ensembles import ensemble, step

STEPS = (
    step({"x": "IN"}, {"y": "A", "z": "MID"}, "a", version=2),
    step({"x": "MID"}, {"y": "B"}, "b"),
    step({"x": "IN", "w": "MID"}, {"y": "C"}, "c"),
)


def config_of(text: str) -> mc.ModelConfig:
    return text_format.Parse(text, mc.ModelConfig(name="e"))


def graph(*steps: str, outputs: str = "A B C", **more: Any) -> EnsembleGraph:
    return EnsembleGraph.from_config(config_of(ensemble(*(steps or STEPS), outputs=outputs, **more)))


def test_versions_and_outputs() -> None:
    first, second, _ = graph().steps
    assert (first.version, second.version) == ("2", "")
    assert [output.name for output in first.requested] == ["y", "z"]
    assert first.outputs == {"y": "A", "z": "MID"}


def test_consumers_of_a_tensor() -> None:
    readers = {name: [s.number for s in steps] for name, steps in graph().consumers.items()}
    assert readers == {"IN": [0, 2], "MID": [1, 2]}


def test_pruned_keeps_steps_that_lead_to_an_output() -> None:
    assert [s.number for s in graph().pruned(["A"]).steps] == [0]
    assert [s.number for s in graph().pruned(["B"]).steps] == [0, 1]
    pruned = graph().pruned(["C", "A"])
    assert ([s.number for s in pruned.steps], pruned.outputs) == ([0, 2], ("A", "C"))


WHEN = 'parameters { key: "step.%s.when" value { string_value: "%s" } }'


def test_a_condition_is_read_before_its_step() -> None:
    made = graph(more=WHEN % (1, "!A"))
    when = made.steps[1].when
    assert when is not None and (when.tensor, when.negated) == ("A", True)
    assert made.steps[1].reads == ("MID", "A")
    assert [s.number for s in made.consumers["A"]] == [1]


def test_tensor_of_a_condition_counts_as_used() -> None:
    steps = (
        step({"x": "IN"}, {"y": "A", "z": "GO"}, "a"),
        step({"x": "A"}, {"y": "B"}, "b"),
    )
    with pytest.raises(InferError, match="ensemble tensor 'GO' is unused"):
        validate_ensemble(config_of(ensemble(*steps, outputs="B")))
    validate_ensemble(config_of(ensemble(*steps, outputs="B", more=WHEN % (1, "GO"))))


def test_condition_of_an_unknown_step_is_refused() -> None:
    with pytest.raises(InferError, match=r"'step\.7\.when' of ensemble 'e' names a step there is not"):
        graph(more=WHEN % (7, "A"))
