"""Ensembles that cannot be served on their own account, and Triton's words for each."""

import pytest

from app.core.errors import ErrorCode, InferError
from backends.registry.configuration import normalise, validate
from tests.unit.backend_harness import config as parse

ENSEMBLE = 'name: "e" platform: "ensemble" input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 1 } '


def step(inputs: dict[str, str], outputs: dict[str, str], model: str = "a") -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def ensemble(*steps: str, more: str = OUT) -> str:
    return f"{ENSEMBLE}{more} ensemble_scheduling {{ {' '.join(steps)} }}"


def test_good_ensembles() -> None:
    validate(normalise(parse(ensemble(step({"x": "IN"}, {"y": "OUT"})))))
    diamond = [
        step({"x": "IN"}, {"l": "L", "r": "R"}),
        step({"x": "L"}, {"y": "L2"}),
        step({"x": "R", "z": "R"}, {"y": "R2"}),
        step({"a": "L2", "b": "R2", "c": "IN"}, {"y": "OUT", "unused": "L3"}),
    ]
    with pytest.raises(InferError, match="ensemble tensor 'L3' is unused in ensemble 'e'"):
        validate(normalise(parse(ensemble(*diamond))))
    validate(normalise(parse(ensemble(*diamond[:3], step({"a": "L2", "b": "R2"}, {"y": "OUT"})))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ensemble(), "must specify 'step' for ensemble 'e'"),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}, "")),
            "must specify 'model_name' in step 0 of ensemble 'e'",
        ),
        (ensemble(step({}, {"y": "OUT"})), "must specify 'input_map' in step 0 of ensemble 'e'"),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}), step({"x": "IN"}, {})),
            "must specify 'output_map' in step 1 of ensemble 'e'",
        ),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}), step({"x": "IN"}, {"y": "OUT"})),
            "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (ensemble(step({"x": "other"}, {"y": "OUT"})), "ensemble input 'IN' for ensemble e' is not used"),
        (ensemble(step({"x": "IN"}, {"y": "other"})), "ensemble output 'OUT' for ensemble e' is not used"),
        (
            ensemble(step({"x": "IN", "z": "void"}, {"y": "OUT"})),
            "output 'OUT' for ensemble 'e' is not written: at least one of its depending "
            "tensors, 'void', is not "
            "connected",
        ),
        (
            ensemble(
                step({"x": "IN", "z": "loop"}, {"y": "mid"}), step({"x": "mid"}, {"y": "loop", "o": "OUT"})
            ),
            "output 'OUT' for ensemble 'e' is not written: at least one of its depending "
            "tensors, 'loop', is not "
            "connected",
        ),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}), more=OUT + "instance_group { }"),
            "instance group should not be specified for ensemble 'e'",
        ),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}), more=OUT + "optimization { }"),
            "optimization should not be specified for ensemble 'e'",
        ),
        (
            ensemble(step({"x": "IN"}, {"y": "OUT"}), more=OUT + "model_warmup { }"),
            "model_warmup can not be specified for ensemble 'e'",
        ),
    ],
)
def test_ensembles(text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        validate(normalise(parse(text)))
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)
