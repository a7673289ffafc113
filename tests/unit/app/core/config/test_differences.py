"""What differs between two configurations of a model, as a rollout says it."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.differences import differences

IO = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
"""


def config(text: str, more: str = "max_batch_size: 8") -> mc.ModelConfig:
    return text_format.Parse(f"{text} {more}", mc.ModelConfig())


@pytest.mark.parametrize(
    ("after", "more", "expected"),
    [
        (IO, "max_batch_size: 16", ""),
        (IO, "max_batch_size: 4", "max_batch_size is 4 instead of 8"),
        (IO.replace("FP32", "FP16"), "max_batch_size: 8", "input 'IN' is FP16 [4] instead of FP32 [4]"),
        (IO.replace("-1", "2"), "max_batch_size: 8", "output 'OUT' is INT64 [2] instead of INT64 [-1]"),
        (IO.replace('"IN"', '"X"'), "max_batch_size: 8", "no input 'IN', a new input 'X'"),
    ],
)
def test_what_clients_would_notice_is_said(after: str, more: str, expected: str) -> None:
    assert differences(config(IO), config(after, more)) == expected


def test_optional_inputs() -> None:
    optional = IO.replace("dims: [ 4 ]", "dims: [ 4 ] optional: true")
    assert differences(config(IO), config(optional)) == ""
    assert differences(config(optional), config(IO)) == "input 'IN' is required"
