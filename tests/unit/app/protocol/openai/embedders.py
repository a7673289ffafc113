"""Models of vectors and of pairs, and their answers, for tests."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.config.text_models import TextModel, text_model
from app.core.tensors import InferResponse, Tensor
from app.protocol.openai.batches import Shapes

VECTORS = """
max_batch_size: 4
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] optional: true },
        { name: "token_ids" data_type: TYPE_INT64 dims: [ -1 ] optional: true } ]
output [ { name: "vector" data_type: TYPE_FP32 dims: [ -1 ] },
         { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
PAIRS = """
max_batch_size: 2
input [ { name: "query" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "document" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "score" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
VLLM = """
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
        { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true },
        { name: "embedding_request" data_type: TYPE_STRING dims: [ 1 ] optional: true },
        { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


class Model(NamedTuple):
    text: TextModel
    inputs: Mapping[str, TensorSpec]
    shapes: Shapes


def config(text: str, settings: str = "") -> mc.ModelConfig:
    """A configuration, with settings as JSON."""
    found = text_format.Parse(text, mc.ModelConfig(name="m", backend="python"))
    if settings:
        found.parameters["openai"].string_value = settings
    return found


def model(text: str, settings: str = "") -> Model:
    parsed = config(text, settings)
    found = text_model(parsed)
    assert found is not None
    inputs = {spec.name: spec for spec in input_specs(parsed)}
    outputs = frozenset(spec.name for spec in output_specs(parsed))
    return Model(found, inputs, Shapes("m", outputs, parsed.max_batch_size))


def response(*tensors: Tensor) -> InferResponse:
    return InferResponse("m", "1", tensors, "")


def floats(name: str, values: Any, dtype: Any = np.float32) -> Tensor:
    return Tensor.from_array(name, np.array(values, dtype))
