"""Names of the tensors of programs, by position and by path."""

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from app.core.errors import InferError
from backends.pytorch.call_spec import argument_paths, input_order, output_places, result_paths
from tests.unit.backend_harness import config

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
PATHS = ["ARGS[0]", "ARGS[1][key]", "KWARGS[name]"]


def node(kind: str, *children: Any, context: Any = "null") -> dict[str, Any]:
    return {"type": f"builtins.{kind}", "context": context, "children_spec": list(children)}


def keyed(**children: Any) -> dict[str, Any]:
    return node("dict", *children.values(), context=json.dumps(list(children)))


def spec(root: Any) -> str:
    return json.dumps([1, root])


def test_paths_of_arguments() -> None:
    positional = node("tuple", LEAF, keyed(key=LEAF, other=node("list", LEAF, LEAF)))
    named = keyed(name=LEAF, nested=node("tuple", LEAF))
    assert argument_paths(spec(node("tuple", positional, named))) == [
        "ARGS[0]",
        "ARGS[1][key]",
        "ARGS[1][other][0]",
        "ARGS[1][other][1]",
        "KWARGS[name]",
        "KWARGS[nested][0]",
    ]


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        (LEAF, ["RESULT"]),
        (node("tuple", LEAF, LEAF), ["RESULT[0]", "RESULT[1]"]),
        (keyed(b=node("list", LEAF), a=LEAF), ["RESULT[b][0]", "RESULT[a]"]),
        (node("dict", LEAF, context=["k"]), ["RESULT[k]"]),
    ],
)
def test_paths_of_results(root: Any, paths: list[str]) -> None:
    assert result_paths(spec(root)) == paths


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("nonsense", "Failed to parse the call specification 'nonsense'"),
        (spec(LEAF), "Unexpected input call specification structure"),
        (
            spec(node("tuple", node("tuple", node("set", LEAF)), keyed())),
            r"Value of `type` property \('builtins.set'\) is unsupported",
        ),
    ],
)
def test_unknown_structures(specification: str, message: str) -> None:
    with pytest.raises(InferError, match=message):
        argument_paths(specification)


def text(inputs: list[str], outputs: list[str], extra: str = "") -> Any:
    tensors = [f'input {{ name: "{name}" }}' for name in inputs]
    tensors += [f'output {{ name: "{name}" }}' for name in outputs]
    return config(f'name: "x" {" ".join(tensors)} {extra}')


@pytest.mark.parametrize("names", [PATHS, ["INPUT__0", "INPUT__1", "INPUT__2"], ["INPUT__0", *PATHS[1:]]])
def test_inputs_by_position_or_path_in_any_order(names: list[str]) -> None:
    assert input_order(text(names[::-1], []), PATHS, "x_0_0") == names


def test_outputs_by_position_or_path() -> None:
    declared = text([], ["RESULT[b]", "OUTPUT__0"])
    assert output_places(declared, ["RESULT[a]", "RESULT[b]"], "x_0_0") == {"RESULT[b]": 1, "OUTPUT__0": 0}


def test_controls_and_states_are_arguments() -> None:
    sequence = """
        sequence_batching {
            control_input { name: "ARGS[1]" control { int32_false_true: [0, 1] } }
            state { input_name: "INPUT__2" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: 2 }
        }
    """
    declared = text(["ARGS[0]"], ["RESULT[0]"], sequence)
    paths = ["ARGS[0]", "ARGS[1]", "ARGS[2]"]
    assert input_order(declared, paths, "x_0_0") == ["ARGS[0]", "ARGS[1]", "INPUT__2"]
    assert output_places(declared, ["RESULT[0]", "RESULT[1]"], "x_0_0") == {"RESULT[0]": 0, "OUTPUT__1": 1}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            ["ARGS[0]"],
            'Failed to load model "x_0_0" configuration expects 1 inputs, but model expects 3 inputs.',
        ),
        (
            ["ARGS[0]", "KWARGS[name]", "y"],
            'Input "y" for model instance "x_0_0" is not found in model input map.',
        ),
        (
            ["ARGS[0]", "INPUT__0", "KWARGS[name]"],
            'Model instance "x_0_0" has no input for ARGS[1][key].',
        ),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[str], message: str) -> None:
    with pytest.raises(InferError) as caught:
        input_order(text(inputs, []), PATHS, "x_0_0")
    assert caught.value.message.startswith(message)


def test_outputs_that_do_not_fit() -> None:
    with pytest.raises(InferError) as caught:
        output_places(text([], []), ["RESULT"], "x_0_0")
    assert caught.value.message == (
        'Configuration for model "x" must define at least one output, none were specified.'
    )
    with pytest.raises(InferError) as caught:
        output_places(text([], ["y"]), ["RESULT"], "x_0_0")
    assert caught.value.message == (
        'Output "y" for model instance "x_0_0" is not found in model output map.'
        ' It has "RESULT", "OUTPUT__0".'
    )
