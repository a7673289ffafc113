"""Decodes the gRPC requests of the model repository extension."""

from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import invalid_arg, unsupported

_FILE_PREFIX = "file:"


def decode_load(message: pb.RepositoryModelLoadRequest) -> tuple[str | None, dict[str, bytes]]:
    """Return the JSON configuration override, if any, and the files by `<version>/<file>`.

    Raises:
        InferError: UNSUPPORTED when a repository is named, INVALID_ARG for an unknown or ill-typed parameter.
    """
    refuse_repository_name(message.repository_name)
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in message.parameters.items():
        if key == "config":
            config = _load_value(key, value, "string_param")
        elif key.startswith(_FILE_PREFIX):
            files[key.removeprefix(_FILE_PREFIX)] = _load_value(key, value, "bytes_param")
        else:
            raise invalid_arg(f"unrecognized load parameter '{key}'.")
    return config, files


def decode_unload(message: pb.RepositoryModelUnloadRequest) -> bool:
    """Return `unload_dependents`.

    Raises:
        InferError: UNSUPPORTED when a repository is named, INVALID_ARG when the parameter is no bool.
    """
    refuse_repository_name(message.repository_name)
    parameters: Mapping[str, Any] = message.parameters
    if "unload_dependents" not in parameters:
        return False
    value = parameters["unload_dependents"]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise invalid_arg("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return bool(value.bool_param)


def refuse_repository_name(name: str) -> None:
    """Raise UNSUPPORTED for a repository name: Triton has the field and does not support it."""
    if name:
        raise unsupported("'repository_name' specification is not supported")


def _load_value(key: str, value: Any, kind: str) -> Any:
    if value.WhichOneof("parameter_choice") != kind:
        raise invalid_arg(f"invalid value type for load parameter '{key}', expected {kind}.")
    return getattr(value, kind)
