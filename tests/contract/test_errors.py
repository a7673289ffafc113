"""The error table: text and code of each refusal over both protocols, and that the next request is served."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.contract.drivers import Driver, Input, Output, Refusal, Refused
from tests.contract.samples import check_simple, image_batch, repeat, simple_inputs, strings
from tests.hints import hint, tritons

INVALID = ("400", "INVALID_ARGUMENT")
NOT_FOUND = ("404", "NOT_FOUND")
UNAVAILABLE = ("503", "UNAVAILABLE")
UNSUPPORTED = ("501", "UNIMPLEMENTED")

ANONYMOUS = "[request id: <id_unknown>] "
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended "
    "to each input shape. If you want to specify the full shape including the batch dim in your input dims "
    "config, try setting max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)


@dataclass(frozen=True)
class Case:
    """A request and its refusal. `http_text` is there where the HTTP front has words of its own."""

    name: str
    codes: tuple[str, str]
    text: str
    model: str = "simple"
    inputs: Callable[[], Sequence[Input]] = simple_inputs
    outputs: Sequence[Output] = ()
    options: dict[str, Any] = field(default_factory=dict)
    http_text: str = ""
    http_code: str = ""

    def refusal(self, protocol: str) -> Refusal:
        if protocol == "grpc":
            return Refusal(self.codes[1], self.text)
        return Refusal(self.http_code or self.codes[0], self.http_text or self.text)


def ints(sent: Sequence[int], name: str = "INPUT0", **options: Any) -> Input:
    return Input(name, np.ones(sent, np.int32), "INT32", **options)


def only(tensor: Input) -> Callable[[], Sequence[Input]]:
    return lambda: [tensor]


def pair(first: Input, second: Input) -> Callable[[], Sequence[Input]]:
    return lambda: [first, second]


CASES = [
    Case("unknown model", NOT_FOUND, "Request for unknown model: 'nobody' is not found", model="nobody"),
    Case(
        "unknown version",
        NOT_FOUND,
        "Request for unknown model: 'simple' version 99 is not found",
        options={"model_version": "99"},
    ),
    Case(
        "version that is no number",
        INVALID,
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
        options={"model_version": "x"},
        # The path of such a version is no route.
        http_text="Not Found",
        http_code="404",
    ),
    Case(
        "missing input",
        INVALID,
        f"{ANONYMOUS}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but "
        "missing required input(s) ['INPUT1']. Please provide all required input(s).",
        inputs=only(ints([1, 16])),
    ),
    Case(
        "missing input of a request with an id",
        INVALID,
        "[request id: my-id] expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT1'], "
        "but missing required input(s) ['INPUT0']. Please provide all required input(s).",
        inputs=only(ints([1, 16], "INPUT1")),
        options={"request_id": "my-id"},
    ),
    Case(
        "misnamed input",
        INVALID,
        "unexpected inference input 'INPUT9' for model 'simple'",
        inputs=pair(ints([1, 16]), ints([1, 16], "INPUT9")),
    ),
    Case(
        "duplicate input",
        INVALID,
        f"{ANONYMOUS}input 'INPUT0' already exists in request",
        inputs=pair(ints([1, 16]), ints([1, 16])),
    ),
    Case(
        "unknown output",
        INVALID,
        "unexpected inference output 'OUTPUT9' for model 'simple'",
        outputs=[Output("OUTPUT9")],
    ),
    Case(
        "wrong data type",
        INVALID,
        f"{ANONYMOUS}inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",
        inputs=pair(Input("INPUT0", np.ones((1, 16), np.float32), "FP32"), ints([1, 16], "INPUT1")),
    ),
    Case(
        "wrong data type, strings for numbers",
        INVALID,
        f"{ANONYMOUS}inference input 'INPUT0' data-type is 'BYTES', but model 'simple' expects 'INT32'",
        inputs=pair(Input("INPUT0", strings(*[b"1"] * 16), "BYTES"), ints([1, 16], "INPUT1")),
    ),
    Case(
        "wrong shape",
        INVALID,
        f"{ANONYMOUS}unexpected shape for input 'INPUT0' for model 'simple'. "
        f"Expected [-1,16], got [1,17]. {BATCH_NOTE}",
        inputs=pair(ints([1, 17]), ints([1, 16], "INPUT1")),
    ),
    Case(
        "too many dimensions",
        INVALID,
        f"{ANONYMOUS}unexpected shape for input 'INPUT0' for model 'simple'. "
        f"Expected [-1,16], got [1,16,1]. {BATCH_NOTE}",
        inputs=pair(ints([1, 16, 1]), ints([1, 16], "INPUT1")),
    ),
    Case(
        "no batch dimension",
        INVALID,
        f"{ANONYMOUS}inference request batch-size must be <= 8 for 'simple'",
        inputs=pair(ints([16]), ints([16], "INPUT1")),
    ),
    Case(
        "batch too big",
        INVALID,
        f"{ANONYMOUS}inference request batch-size must be <= 8 for 'simple'",
        inputs=lambda: simple_inputs(9),
    ),
    Case(
        "too few bytes",
        INVALID,
        f"{ANONYMOUS}input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 60",
        inputs=pair(ints([1, 15], shape=[1, 16]), ints([1, 16], "INPUT1")),
    ),
    Case(
        "too many bytes",
        INVALID,
        f"{ANONYMOUS}input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 68",
        inputs=pair(ints([1, 16]), ints([1, 17], "INPUT1", shape=[1, 16])),
    ),
    Case(
        "too few bytes for a variable dimension",
        INVALID,
        f"{ANONYMOUS}input byte size mismatch for input 'INPUT0' for model 'custom_identity_int32'. "
        "Expected 400, got 12",
        model="custom_identity_int32",
        inputs=only(ints([1, 3], shape=[1, 100])),
    ),
    Case(
        "too few strings",
        INVALID,
        f"{ANONYMOUS}expected 3 string elements for inference input 'INPUT0' for model 'simple_identity', "
        "got 2",
        model="simple_identity",
        inputs=only(Input("INPUT0", strings(b"a", b"b"), "BYTES", shape=[1, 3])),
    ),
    Case(
        "too many strings",
        INVALID,
        f"{ANONYMOUS}unexpected number of string elements 2 for inference input 'INPUT0' for model "
        "'simple_identity', expecting 1",
        model="simple_identity",
        inputs=only(Input("INPUT0", strings(b"a", b"b"), "BYTES", shape=[1, 1])),
    ),
    Case(
        "decoupled model over a unary call",
        UNSUPPORTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
        model="repeat_int32",
        inputs=lambda: repeat([1]).inputs,
        http_text="HTTP end point doesn't support models with decoupled transaction policy",
    ),
    Case(
        "classification of strings",
        INVALID,
        "class result not available for output due to unsupported type 'BYTES'",
        model="simple_identity",
        inputs=only(Input("INPUT0", strings(b"a"), "BYTES")),
        outputs=[Output("OUTPUT0", classes=1)],
    ),
    Case(
        "image of the wrong layout",
        INVALID,
        f"{ANONYMOUS}unexpected shape for input 'input' for model 'efficientnet_lite0_onnx'. "
        f"Expected [-1,3,224,224], got [1,224,224,3]. {BATCH_NOTE}",
        model="efficientnet_lite0_onnx",
        inputs=only(Input("input", image_batch(1).array.reshape(1, 224, 224, 3), "FP32")),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused_inference(client: Driver, case: Case) -> None:
    with pytest.raises(Refused) as caught:
        client.infer(case.model, case.inputs(), case.outputs, **case.options)
    expected = case.refusal(client.protocol)
    assert tritons(caught.value.refusal.text) == expected.text.rstrip()
    assert caught.value.refusal.status == expected.status
    check_simple(client)


# Triton looks at inputs in no particular order, so which one it names is open.
OPEN_CASES = {
    "extra input": (
        [*simple_inputs(), ints([1, 16], "INPUT2")],
        r"expected 2 inputs but got 3 inputs for model 'simple'\. "
        r"Got input\(s\) \['INPUT\d','INPUT\d','INPUT\d'\], but missing required input\(s\) \[?\]\. "
        r"Please provide all required input\(s\)\.",
    ),
    "batch sizes differ": (
        [ints([2, 16]), ints([1, 16], "INPUT1")],
        r"input 'INPUT[01]' batch size does not match other inputs for 'simple'",
    ),
}


@pytest.mark.parametrize(("inputs", "pattern"), OPEN_CASES.values(), ids=OPEN_CASES.keys())
def test_refusal_that_names_any_input(client: Driver, inputs: list[Input], pattern: str) -> None:
    with pytest.raises(Refused) as caught:
        client.infer("simple", inputs)
    status, text = caught.value.refusal
    assert status in INVALID
    assert re.fullmatch(re.escape(ANONYMOUS) + pattern, tritons(text))
    check_simple(client)


REPOSITORY_REFUSAL = "explicit model load / unload is not allowed if polling is enabled"


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("load_model", ("simple",)),
        ("load_model", ("nobody",)),
        ("unload_model", ("simple",)),
        ("unload_model", ("nobody",)),
    ],
)
def test_loading_is_refused_without_explicit_control(client: Driver, method: str, args: tuple[str]) -> None:
    with pytest.raises(Refused) as caught:
        client.call(method, *args)
    status, text = caught.value.refusal
    assert (status, tritons(text)) == (UNAVAILABLE[client.protocol == "grpc"], REPOSITORY_REFUSAL)
    assert "--model-control-mode=none; it loads on request with =explicit" in hint(text)
    check_simple(client)


def test_wrong_and_right_requests_side_by_side(client: Driver) -> None:
    """A bad request spoils nothing for those around it."""
    for _ in range(20):
        with pytest.raises(Refused):
            client.infer("simple", [ints([1, 16])])
        check_simple(client, 2)
