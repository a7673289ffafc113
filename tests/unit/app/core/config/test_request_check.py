"""Requests against configurations: who passes, and with which words the others are refused."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.request_check import RequestChecker, walk_strings
from app.core.datatypes import pack_bytes
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, Parameters, RequestedOutput, Tensor
from tests.hints import hint, tritons

PREFIX = "[request id: <id_unknown>] "
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to "
    "be prepended to "
    "each input shape. If you want to specify the full shape including the batch dim in your "
    "input dims config, "
    "try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

BATCHED = """
    name: "m" max_batch_size: 8
    input { name: "A" data_type: TYPE_FP32 dims: 16 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 16 }
"""
UNBATCHED = 'name: "m" input { name: "A" data_type: TYPE_INT32 dims: [ 2, -1 ] } output { name: "OUT" }'
PAIR = """
    name: "m" max_batch_size: 8
    input { name: "A" data_type: TYPE_FP32 dims: 2 }
    input { name: "B" data_type: TYPE_FP32 dims: 2 }
"""
OPTIONAL = """
    name: "m" max_batch_size: 8
    input { name: "A" data_type: TYPE_FP32 dims: 2 }
    input { name: "B" data_type: TYPE_FP32 dims: 2 optional: true }
"""
IMAGE = 'name: "m" max_batch_size: 8 input { name: "A" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }'
WORDS = """
    name: "m"
    input { name: "PROMPT" data_type: TYPE_FP32 dims: 1 }
    input { name: "STYLE" data_type: TYPE_FP32 dims: 1 optional: true }
"""
STRINGS = 'name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_STRING dims: 2 }'


def checker(text: str) -> RequestChecker:
    return RequestChecker(text_format.Parse(text, mc.ModelConfig()))


def tensor(name: str, shape: tuple[int, ...], size: int, datatype: str = "FP32") -> Tensor:
    return Tensor(name, datatype, shape, memoryview(bytes(size)))


def request(
    *inputs: Tensor, outputs: tuple[str, ...] = (), id: str = "", parameters: Parameters | None = None
) -> InferRequest:
    asked = tuple(RequestedOutput(name) for name in outputs)
    return InferRequest("m", "", inputs, asked, id, parameters or {})


def refusal(text: str, asked: InferRequest) -> str:
    with pytest.raises(InferError) as caught:
        checker(text).check(asked)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    ("config", "asked", "rows"),
    [
        (BATCHED, request(tensor("A", (1, 16), 64)), 1),
        (BATCHED, request(tensor("A", (8, 16), 512), outputs=("OUT",)), 8),
        (PAIR, request(tensor("B", (3, 2), 24), tensor("A", (3, 2), 24)), 3),
        (OPTIONAL, request(tensor("A", (3, 2), 24)), 3),
        (OPTIONAL, request(tensor("A", (3, 2), 24), tensor("B", (3, 2), 24)), 3),
        (UNBATCHED, request(tensor("A", (2, 5), 40, "INT32")), 1),
        (UNBATCHED, request(tensor("A", (2, 0), 0, "INT32")), 1),
        (STRINGS, request(Tensor("A", "BYTES", (2, 2), pack_bytes([b"", b"a", b"bc", b"d" * 300]))), 2),
        ('name: "m" max_batch_size: 4', request(), 1),
        ('name: "m"', request(), 1),
    ],
)
def test_fitting_requests_give_their_batch_size(config: str, asked: InferRequest, rows: int) -> None:
    assert checker(config).check(asked) == rows


def test_reshape_does_not_change_what_the_client_sends() -> None:
    config = (
        'name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }'
    )
    assert checker(config).check(request(tensor("A", (4, 1), 16))) == 4


SHAPE = "unexpected shape for input 'A' for model 'm'. Expected [-1,16], got "
BAD_REQUESTS: list[tuple[str, InferRequest, str]] = [
    (
        PAIR,
        request(tensor("A", (1, 2), 8)),
        PREFIX + "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required "
        "input(s) ['B']. Please provide all required input(s).",
    ),
    (
        PAIR,
        request(id="r7"),
        "[request id: r7] expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing "
        "required input(s) ['A','B']. Please provide all required input(s).",
    ),
    (
        BATCHED,
        request(tensor("A", (1, 16), 64), tensor("C", (1, 16), 64)),
        PREFIX
        + "expected 1 inputs but got 2 inputs for model 'm'. Got input(s) ['C','A'], but missing required "
        "input(s) ]. Please provide all required input(s).",
    ),
    (
        OPTIONAL,
        request(),
        PREFIX
        + "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but "
        "missing required input(s) ['A']. Please provide all required input(s).",
    ),
    (
        OPTIONAL,
        request(tensor("B", (1, 2), 8)),
        PREFIX
        + "expected number of inputs between 1 and 2 but got 1 inputs for model 'm'. Got input(s) ['B'], "
        "but missing required input(s) ['A']. Please provide all required input(s).",
    ),
    (BATCHED, request(tensor("Z", (1, 16), 64)), "unexpected inference input 'Z' for model 'm'"),
    (
        BATCHED,
        request(tensor("A", (1, 16), 64), outputs=("NO",)),
        "unexpected inference output 'NO' for model 'm'",
    ),
    (
        PAIR,
        request(tensor("A", (1, 2), 8), tensor("A", (1, 2), 8)),
        PREFIX + "input 'A' already exists in request",
    ),
    (
        BATCHED,
        request(tensor("A", (1, 16), 64, "INT32")),
        PREFIX + "inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'",
    ),
    (BATCHED, request(tensor("A", (1, 17), 68)), f"{PREFIX}{SHAPE}[1,17]. {NOTE}"),
    (BATCHED, request(tensor("A", (1,), 4)), f"{PREFIX}{SHAPE}[1]. {NOTE}"),
    (
        UNBATCHED,
        request(tensor("A", (3, 1), 12, "INT32")),
        PREFIX + "unexpected shape for input 'A' for model 'm'. Expected [2,-1], got [3,1]. ",
    ),
    (
        PAIR,
        request(tensor("A", (1, 2), 8), tensor("B", (2, 2), 16)),
        PREFIX + "input 'B' batch size does not match other inputs for 'm'",
    ),
    (
        PAIR,
        request(tensor("A", (0, 2), 0), tensor("B", (1, 2), 8)),
        PREFIX + "input 'B' batch size does not match other inputs for 'm'",
    ),
    (
        BATCHED,
        request(tensor("A", (1, 16), 64, "INT31")),
        PREFIX + "inference input 'A' data-type is '<invalid>', but model 'm' expects 'FP32'",
    ),
    (
        BATCHED,
        request(tensor("A", (9, 16), 576)),
        PREFIX + "inference request batch-size must be <= 8 for 'm'",
    ),
    (
        BATCHED,
        request(tensor("A", (), 0)),
        PREFIX + "input 'A' has no shape but model requires batch dimension for 'm'",
    ),
    (
        BATCHED,
        request(tensor("A", (1, 16), 60)),
        PREFIX + "input byte size mismatch for input 'A' for model 'm'. Expected 64, got 60",
    ),
    (
        BATCHED,
        request(tensor("A", (0, 16), 0)),
        PREFIX + "input byte size mismatch for input 'A' for model 'm'. Expected 64, got 0",
    ),
    (
        BATCHED,
        request(tensor("A", (0, 16), 64)),
        PREFIX + "input byte size mismatch for input 'A' for model 'm'. Expected 0, got 64",
    ),
]


@pytest.mark.parametrize(("config", "asked", "text"), BAD_REQUESTS)
def test_bad_requests_are_refused_with_tritons_text(config: str, asked: InferRequest, text: str) -> None:
    assert tritons(refusal(config, asked)) == text.rstrip()


@pytest.mark.parametrize(
    ("config", "shape", "text"),
    [
        (BATCHED, (-1, 16), "batch-size must be <= 8 for 'm'"),
        (BATCHED, (2**63, 16), "batch-size must be <= 8 for 'm'"),
        (
            BATCHED,
            (1, -1),
            "All input dimensions should be specified for input 'A' for model 'm', got [1,-1]",
        ),
        (BATCHED, (1, 2**63), "got [1,9223372036854775808]. "),
        (BATCHED, (1, 10**5000), "got [1,<out of range>]. "),
        (UNBATCHED, (2, -7), "tensor 'A' contains an invalid dimension [2,-7]"),
        (UNBATCHED, (2, 2**62), "byte size for tensor 'A' exceeds maximum size of 9223372036854775807"),
        (UNBATCHED, (2, 2**63), "byte size for tensor 'A' exceeds maximum size of 9223372036854775807"),
        (UNBATCHED, (2, 10**6000), "byte size for tensor 'A' exceeds maximum size of 9223372036854775807"),
        (UNBATCHED, (2, 2**40), "Expected 8796093022208, got 8"),
    ],
)
def test_hostile_shapes(config: str, shape: tuple[int, ...], text: str) -> None:
    datatype = "FP32" if config is BATCHED else "INT32"
    assert text in refusal(config, request(tensor("A", shape, 8, datatype)))


SUBJECT = "for inference input 'A' for model 'm'"


@pytest.mark.parametrize(
    ("shape", "data", "text"),
    [
        ((1, 2), pack_bytes([b"x"]), f"expected 2 string elements {SUBJECT}, got 1"),
        ((1, 2), b"", f"expected 2 string elements {SUBJECT}, got 0"),
        ((1, 2), pack_bytes([b"x"] * 9), f"unexpected number of string elements 3 {SUBJECT}, expecting 2"),
        (
            (1, 2),
            pack_bytes([b"x", b"y"]) + b"\1\0",
            f"incomplete string length indicator {SUBJECT}, expecting 4 bytes but only 2 bytes available. "
            "Please make sure the string length indicator is in one buffer.",
        ),
        (
            (1, 2),
            pack_bytes([b"x"]) + b"\xff\xff\xff\xffab",
            f"incomplete string data {SUBJECT}, expecting string of length 4294967295 but only 2 "
            "bytes available",
        ),
        ((0, 2), b"", f"expected 2 string elements {SUBJECT}, got 0"),
        ((0, 2), pack_bytes([b"x"]), f"unexpected number of string elements 1 {SUBJECT}, expecting 0"),
    ],
)
def test_string_lengths_beyond_the_data_are_refused(shape: tuple[int, ...], data: bytes, text: str) -> None:
    assert refusal(STRINGS, request(Tensor("A", "BYTES", shape, data))) == PREFIX + text


def test_a_string_shape_that_overflows() -> None:
    config = 'name: "m" input { name: "A" data_type: TYPE_STRING dims: [ -1, -1 ] }'
    asked = request(Tensor("A", "BYTES", (2**40, 2**40), b""))
    text = "element count for tensor 'A' exceeds maximum size of 9223372036854775807"
    assert refusal(config, asked) == text
    asked = request(Tensor("A", "BYTES", (2, -2), b""))
    assert refusal(config, asked) == "tensor 'A' contains an invalid dimension in shape [2,-2]"


def test_a_batch_of_no_rows_and_no_elements() -> None:
    config = 'name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: -1 }'
    text = PREFIX + "inference request batch-size must be >= 1 for 'm'"
    assert refusal(config, request(tensor("A", (0, 0), 0))) == text


def test_error_for_a_million_inputs_is_short() -> None:
    many = request(*(tensor(str(index), (1, 16), 64) for index in range(100_000)))
    assert len(refusal(BATCHED, many)) < 2000


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(0, 25))
def test_walk_counts_what_pack_packed(elements: list[bytes], promised: int) -> None:
    assert walk_strings(memoryview(pack_bytes(elements)), promised) == min(len(elements), promised + 1)


@given(st.binary(max_size=200), st.integers(0, 8))
def test_any_bytes_are_accepted_whole_or_refused(data: bytes, rows: int) -> None:
    config = 'name: "m" max_batch_size: 8 input { name: "A" data_type: TYPE_STRING dims: 1 }'
    asked = request(Tensor("A", "BYTES", (rows, 1), data))
    try:
        assert checker(config).check(asked) == rows
    except InferError as error:
        assert error.code is ErrorCode.INVALID_ARG
    else:
        assert len(asked.inputs[0].array()) == rows


@given(
    st.lists(st.integers(-3, 2**70), max_size=4).map(tuple),
    st.integers(0, 300),
    st.sampled_from(["FP32", "BYTES", "INT32", "nonsense"]),
)
def test_any_shape_is_accepted_or_refused_with_an_infer_error(
    shape: tuple[int, ...], size: int, datatype: str
) -> None:
    for config in (BATCHED, UNBATCHED, STRINGS):
        try:
            checker(config).check(request(tensor("A", shape, size, datatype)))
        except InferError as error:
            assert error.code is ErrorCode.INVALID_ARG


def test_of_two_bad_inputs_the_last_one_is_named() -> None:
    bad = tensor("A", (1, 3), 12), tensor("B", (1, 3), 12)
    assert "unexpected shape for input 'B'" in refusal(PAIR, request(*bad))
    assert "unexpected shape for input 'A'" in refusal(PAIR, request(*reversed(bad)))


def test_output_requested_twice_is_refused() -> None:
    twice = request(tensor("A", (1, 16), 64), outputs=("OUT", "OUT"))
    with pytest.raises(InferError) as caught:
        checker(BATCHED).check(twice)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == PREFIX + "output 'OUT' already exists in request"


@pytest.mark.parametrize(
    ("config", "asked", "words"),
    [
        (BATCHED, request(tensor("A", (1, 17), 68)), "dimension 1 is 17, expected 16"),
        (BATCHED, request(tensor("A", (16,), 64)), "the batch dimension is missing: one row is [1,16]"),
        (BATCHED, request(tensor("A", (1, 16, 1), 64)), "3 dimensions are given, 2 expected"),
        (IMAGE, request(tensor("A", (1, 224, 224, 3), 0)), "dimension 1 is 224, expected 3, dimension 3 is"),
        (IMAGE, request(tensor("A", (1, 224, 224, 3), 0)), "in another order"),
        (BATCHED, request(tensor("A", (1, 1 << 20000), 64)), "dimension 1 is <out of range>, expected 16"),
        (BATCHED, request(tensor("a", (1, 16), 64)), "did you mean 'A'? The model's inputs: 'A'"),
        (BATCHED, request(tensor("A", (1, 16), 64), outputs=("OUTT",)), "did you mean 'OUT'?"),
        (
            WORDS,
            request(tensor("PROMT", (1,), 4), tensor("STYLE", (1,), 4), tensor("X", (1,), 4)),
            "the input 'PROMT' is no input of the model: did you mean 'PROMPT'?",
        ),
        (WORDS, request(tensor("PROMT", (1,), 4)), "did you mean 'PROMPT'? The model's inputs: 'PROMPT'"),
        (
            WORDS,
            request(parameters={"promt": "x"}),
            "the parameter 'promt' is no input of the model: did you mean 'PROMPT'?",
        ),
        (BATCHED, request(tensor("A", (1, 16), 60)), "'A' needs 16 elements by its shape, its data has 15"),
        (BATCHED, request(tensor("A", (1, 16), 64, "float32")), "'float32' is written 'FP32'"),
        (BATCHED, request(tensor("A", (1, 16), 64, "TYPE_UINT8")), "'TYPE_UINT8' is written 'UINT8'"),
    ],
)
def test_refusals_say_what_to_do(config: str, asked: InferRequest, words: str) -> None:
    assert words in hint(refusal(config, asked))


def test_long_names_cost_no_search() -> None:
    assert "did you mean" not in refusal(BATCHED, request(tensor("A" * 10_000, (1, 16), 64)))
