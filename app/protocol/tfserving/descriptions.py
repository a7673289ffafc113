"""Descriptions of a model in TensorFlow Serving's REST API: states of its versions, its signature."""

from collections.abc import Iterable
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from app.core.config.model_config import TensorSpec
from app.core.errors import not_found
from app.protocol.tfserving.signature import DTYPES, Signature

_STATES: Final = {
    "READY": "AVAILABLE", "LOADING": "LOADING", "UNLOADING": "UNLOADING", "UNAVAILABLE": "END",
}  # fmt: skip
_QUIET_REASONS: Final = ("", "unloaded", "idle")
_METHOD: Final = "tensorflow/serving/predict"


def version_status(model: str, version: str, index: Iterable[pb.RepositoryIndexResponse.ModelIndex]) -> Any:
    """Return the answer of GET `/v1/models/<model>[/versions/<version>]`.

    Args:
        model: its name.
        version: of the path; "" for all.
        index: of the repository.

    Raises:
        InferError: NOT_FOUND in TensorFlow Serving's words.
    """
    found = [row for row in index if row.name == model and row.version and version in ("", row.version)]
    if not found:
        which = f"version {version}" if version else "any versions"
        raise not_found(f"Could not find {which} of model {model}")
    return {"model_version_status": [_status(row) for row in reversed(found)]}


def _status(row: pb.RepositoryIndexResponse.ModelIndex) -> Any:
    failed = row.state == "UNAVAILABLE" and row.reason not in _QUIET_REASONS
    status = {"error_code": "UNKNOWN" if failed else "OK", "error_message": row.reason if failed else ""}
    return {"version": row.version, "state": _STATES.get(row.state, "START"), "status": status}


def metadata(model: str, version: int, signature: Signature) -> Any:
    """Return the answer of GET `/v1/models/<model>/metadata`."""
    described = {
        "inputs": {name: _tensor(spec) for name, spec in signature.inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in signature.outputs.items()},
        "method_name": _METHOD,
    }
    spec = {"name": model, "signature_name": "", "version": str(version)}
    return {
        "model_spec": spec,
        "metadata": {"signature_def": {"signature_def": {signature.name: described}}},
    }


def _tensor(spec: TensorSpec) -> Any:
    dims = [{"size": str(size), "name": ""} for size in spec.reshaped.shape]
    shape = {"dim": dims, "unknown_rank": False}
    return {"dtype": DTYPES[spec.datatype], "tensor_shape": shape, "name": f"{spec.name}:0"}
