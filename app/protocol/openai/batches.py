"""Texts of a request in batches for a model, and rows of numbers out of its responses. No I/O."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.core.config.model_config import WILDCARD, TensorSpec
from app.core.datatypes import pack_bytes
from app.core.errors import InferError, internal
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.protocol.openai.caller import Caller

Array = npt.NDArray[Any]

INPUT_TOKENS: Final = "num_input_tokens"
MAX_ROWS: Final = 32
"""Texts in a request to a model without batches that takes any number of them."""


class Shapes(NamedTuple):
    """How a model takes texts.

    Attributes:
        model: its name.
        outputs: the names of its outputs.
        max_batch_size: 0 for a model without batches.
    """

    model: str
    outputs: frozenset[str]
    max_batch_size: int

    def size(self, text: TensorSpec) -> int:
        """Return how many texts a request may have."""
        if self.max_batch_size:
            return self.max_batch_size
        return MAX_ROWS if text.dims and text.dims[0] == WILDCARD else 1

    def tensor(self, spec: TensorSpec, texts: Sequence[str]) -> Tensor:
        """Return the tensor of texts, BYTES."""
        rank = len(spec.dims) + (self.max_batch_size > 0)
        shape = (len(texts), *[1] * (rank - 1)) if rank else ()
        return Tensor(spec.name, "BYTES", shape, pack_bytes(texts))

    def ids(self, spec: TensorSpec, ids: Sequence[int]) -> Tensor:
        """Return the tensor of one text's tokens."""
        shape = (1, len(ids)) if self.max_batch_size else (len(ids),)
        return Tensor.from_array(spec.name, np.array(ids, np.dtype(spec.datatype.lower())).reshape(shape))

    def request(self, inputs: Sequence[Tensor], output: str, caller: Caller, request_id: str) -> InferRequest:
        """Return a request for an output, and for the number of tokens where the model says it."""
        wanted = tuple(RequestedOutput(name) for name in (output, INPUT_TOKENS) if name in self.outputs)
        return InferRequest(
            self.model,
            "",
            tuple(inputs),
            wanted,
            id=request_id,
            parameters=dict(caller.names),
            priority=caller.priority,
            timeout_us=caller.timeout_us,
        )


def rows(response: InferResponse, output: str, count: int) -> Array:
    """Return an output as FP32 [count, width].

    Raises:
        InferError: INTERNAL, the model has not as many rows, or numbers that are none.
    """
    tensor = find(response, output)
    values = tensor.array()
    if tensor.datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if not values.size or values.size % count or (count > 1 and values.shape[0] != count):
        raise internal(f"output '{output}' of {list(values.shape)} is not that of {count} texts")
    found = values.astype(np.float32).reshape(count, -1)
    if not np.isfinite(found).all():
        raise internal(f"output '{output}' has numbers that are not finite")
    return found


def find(response: InferResponse, output: str) -> Tensor:
    """Return an output of a response.

    Raises:
        InferError: INTERNAL, it has none.
    """
    for tensor in response.outputs:
        if tensor.name == output:
            return tensor
    raise internal(f"the model's response has no output '{output}'")


def input_tokens(response: InferResponse) -> int:
    """Return the tokens of all texts of a request; 0 where the model does not say."""
    try:
        return int(find(response, INPUT_TOKENS).array().sum())
    except (InferError, ValueError, TypeError):
        return 0
