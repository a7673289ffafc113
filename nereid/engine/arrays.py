"""Arrays as the tensors of requests, and of responses."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from app.core.config.model_config import TensorSpec
from app.core.datatypes import DATATYPES
from app.core.tensors import InferResponse, Tensor
from app.routing.handle_calls import Arrays, arrays


def only(receive: Callable[[], InferResponse]) -> InferResponse:
    """Receive all responses; return the failed one, or the first."""
    first = response = receive()
    while not response.final:
        response = receive()
        if response.failure is not None:
            return response
    return first


def settle(future: "Future[Arrays]", received: Sequence[InferResponse]) -> None:
    """Set the result of a future to the failed response, or the first."""
    failure = next((response for response in received if response.failure is not None), received[0])
    try:
        future.set_result(arrays(failure))
    except Exception as error:
        future.set_exception(error)


def tensor_of(name: str, values: npt.ArrayLike, spec: TensorSpec | None) -> Tensor:
    """Wrap values as the tensor of an input; plain lists get the data type that the model declares."""
    datatype = "" if spec is None else spec.datatype
    if not isinstance(values, np.ndarray | np.generic) and datatype not in ("", "BYTES", "BF16"):
        values = np.asarray(values, dtype=DATATYPES[datatype].dtype)
    array = np.asarray(values)
    return Tensor.from_array(name, array, "BF16" if datatype == "BF16" and array.dtype == np.uint16 else "")
