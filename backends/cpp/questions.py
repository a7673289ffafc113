"""Answers to what C++ backends ask the server: see `shim/server.cpp`."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs
from app.core.config.text import parse_config_json
from app.core.errors import Failure, InferError
from backends.cpp.configuration import config_text, merged
from backends.cpp.library import number_of, shim
from backends.python.api import server_api

_ONE_TO_ONE, _DECOUPLED = 1, 2
"""TRITONSERVER_ModelTxnPropertyFlag."""
_BATCH_UNKNOWN, _BATCH_FIRST_DIM = 1, 2
"""TRITONSERVER_ModelBatchFlag."""


def answer(number: int, what: str, *question: Any) -> None:
    """Answer a question by its number; blocks while the server is asked."""
    code, text = -1, ""
    try:
        text = _ANSWERS[what](*question)
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, InferError) else error
        failure = Failure.from_exception(cause)
        code, text = number_of(failure), failure.message
    data = text.encode(errors="replace")
    shim().nereid_answer(number, code, data, len(data))


def _found(answer: Callable[[mc.ModelConfig, int, bool], Any]) -> Callable[..., str]:
    """Return an answer that needs configuration, version and readiness of a model, which must be known."""

    def found(model: str, version: str, _json: str, _files: Any) -> str:
        return str(answer(*server_api.current().find_model(model, version)))

    return found


def _load(model: str, _version: str, config: str, files: Sequence[tuple[str, bytes]]) -> str:
    server_api.current().load_model(model, config, dict(files))
    return ""


def _unload(dependents: bool) -> Callable[..., str]:
    def unload(model: str, *_: Any) -> str:
        server_api.current().unload_model(model, dependents)
        return ""

    return unload


def _completed(declared: str, _version: str, config: str, _files: Any) -> str:
    return config_text(merged(parse_config_json(declared), parse_config_json(config)))


def _metadata(config: mc.ModelConfig, version: int, _ready: bool) -> str:
    def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs]

    return json.dumps(
        {
            "name": config.name,
            "versions": [str(version)],
            "platform": config.platform or config.backend,
            "inputs": described(input_specs(config)),
            "outputs": described(output_specs(config)),
        }
    )


_ANSWERS: Final[dict[str, Callable[..., str]]] = {
    "known": _found(lambda config, version, ready: ""),
    "ready": _found(lambda config, version, ready: int(ready)),
    "transactions": _found(
        lambda config, version, ready: (
            _DECOUPLED if config.model_transaction_policy.decoupled else _ONE_TO_ONE
        )
    ),
    "batching": _found(
        lambda config, version, ready: _BATCH_FIRST_DIM if config.max_batch_size > 0 else _BATCH_UNKNOWN
    ),
    "config": _found(lambda config, version, ready: config_text(config)),
    "completed": _completed,
    "metadata": _found(_metadata),
    "load": _load,
    "unload": _unload(False),
    "unload dependents": _unload(True),
}
