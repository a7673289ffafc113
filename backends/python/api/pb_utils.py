"""The module that Python models import as `triton_python_backend_utils`.

Names, signatures and texts are those of Triton's python_backend (README "Using the Python Backend" and
src/resources/triton_python_backend_utils.py). The numpy helpers keep its spelling.
"""

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.datatypes import pack_bytes, unpack_bytes
from app.core.installed.own_modules import PREFIX
from backends.python.api import model_directory, server_api
from backends.python.api.calls import ResponseIterator
from backends.python.api.errors import TritonError, TritonModelException
from backends.python.api.metrics import Metric, MetricFamily
from backends.python.api.model_config import ModelConfig
from backends.python.api.request import (
    MEMORY_CPU,
    MEMORY_GPU,
    RELEASE_ALL,
    RELEASE_RESCHEDULE,
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from backends.python.api.response import COMPLETE_FINAL, InferenceResponse, InferenceResponseSender
from backends.python.api.tensor import NUMPY_TO_TRITON, Tensor
from backends.python.api.text import as_text

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = SEQUENCE_END
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = COMPLETE_FINAL
TRITONSERVER_REQUEST_RELEASE_ALL: Final = RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = RELEASE_RESCHEDULE
TRITONSERVER_MEMORY_CPU: Final = MEMORY_CPU
TRITONSERVER_MEMORY_GPU: Final = MEMORY_GPU

TRITON_STRING_TO_NUMPY: Final[dict[str, Any]] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
_TRITON_TO_NUMPY: Final = {number: kind for kind, number in NUMPY_TO_TRITON.items() if kind is not np.bytes_}

Properties = dict[str, Any]


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the output of that name, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Properties, name: str) -> Properties | None:
    """Return the input of that name in a configuration (as a dict), or None."""
    return next((io for io in model_config.get("input", ()) if io["name"] == name), None)


def get_output_config_by_name(model_config: Properties, name: str) -> Properties | None:
    """Return the output of that name in a configuration (as a dict), or None."""
    return next((io for io in model_config.get("output", ()) if io["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Properties) -> bool:
    """Whether a configuration (as a dict) is decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type for a number of the configuration's DataType, or None."""
    return _TRITON_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the number of the configuration's DataType for a numpy type or dtype, or None."""
    return NUMPY_TO_TRITON.get(np.dtype(data_type).type)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type for a name such as "TYPE_FP32"."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None:
    """Join the elements of a string array, each behind its length; return None for other types."""
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    elements = input_tensor.ravel().tolist()
    return pack_bytes(element if isinstance(element, bytes) else str(element) for element in elements)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> npt.NDArray[np.object_]:
    """Undo `serialize_byte_tensor`; return a 1-D object array of bytes."""
    elements = unpack_bytes(encoded_tensor)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def get_model_dir() -> str:
    """Return the directory of model.py."""
    return model_directory.current()


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model; the names of files are paths in its directory behind `file:`, as in Triton."""
    paths = {name.removeprefix("file:"): content for name, content in (files or {}).items()}
    server_api.for_repository(model_name).load_model(model_name, config, paths)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model. A model that unloads itself does not wait; its requests are answered first."""
    server_api.for_repository(model_name).unload_model(model_name, unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether the model can be called."""
    return server_api.current().is_model_ready(model_name, model_version)


class Logger:
    """Writes to the server's log, with the calling line of model.py."""

    class LogLevel(IntEnum):
        """Severity of a message."""

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO: Final = LogLevel.INFO
    WARNING: Final = LogLevel.WARNING
    ERROR: Final = LogLevel.ERROR
    VERBOSE: Final = LogLevel.VERBOSE

    _LEVELS: Final = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
    _logger: Final = logging.getLogger(f"{PREFIX}backends.python.model")

    @staticmethod
    def log(message: str, level: LogLevel = INFO) -> None:
        """Log at one of the levels `LogLevel`.

        Raises:
            TypeError: the level is no `LogLevel`, or the message no string, as from Triton's binding.
        """
        if not isinstance(level, Logger.LogLevel):
            raise TypeError(f"expected a Logger.LogLevel, not {type(level).__name__}")
        Logger._logger.log(Logger._LEVELS[level], "%s", as_text(message), stacklevel=2)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        Logger._logger.info("%s", as_text(message), stacklevel=2)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        Logger._logger.warning("%s", as_text(message), stacklevel=2)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        Logger._logger.error("%s", as_text(message), stacklevel=2)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        Logger._logger.debug("%s", as_text(message), stacklevel=2)
