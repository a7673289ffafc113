"""JSON forms of the descriptions that the HTTP API serves, in Triton's key order."""

from typing import Any

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.config.json import config_to_json
from app.core.encoding import to_json
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutStatus
from app.protocol.rollout import history_fields, status_fields

_INFER_DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
_RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
_BATCH_DURATIONS = ("compute_input", "compute_infer", "compute_output")


def encode_server_metadata(metadata: pb.ServerMetadataResponse) -> bytes:
    """Return the body of `GET /v2`."""
    return to_json(
        {"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)}
    )


def encode_model_metadata(metadata: pb.ModelMetadataResponse) -> bytes:
    """Return the body of `GET /v2/models/<model>`."""
    return to_json(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": [_tensor(entry) for entry in metadata.inputs],
            "outputs": [_tensor(entry) for entry in metadata.outputs],
        }
    )


def _tensor(entry: pb.ModelMetadataResponse.TensorMetadata) -> dict[str, Any]:
    return {"name": entry.name, "datatype": entry.datatype, "shape": list(entry.shape)}


def encode_rollout(status: RolloutStatus) -> bytes:
    """Return the body of `GET /v2/models/<model>/rollout`."""
    return to_json(status_fields(status))


def encode_rollout_history(history: RolloutHistory) -> bytes:
    """Return the body of `GET /v2/models/<model>/rollout/history`."""
    return to_json(history_fields(history))


def encode_config(config: mc.ModelConfig) -> bytes:
    """Return the body of `GET /v2/models/<model>/config`."""
    return to_json(config_to_json(config))


def encode_statistics(statistics: pb.ModelStatisticsResponse) -> bytes:
    """Return the body of `GET /v2/models/stats`."""
    return to_json({"model_stats": [_model_stats(entry) for entry in statistics.model_stats]})


def _model_stats(entry: pb.ModelStatistics) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "name": entry.name,
        "version": entry.version,
        "last_inference": entry.last_inference,
        "inference_count": entry.inference_count,
        "execution_count": entry.execution_count,
        "inference_stats": _durations(entry.inference_stats, _INFER_DURATIONS),
        "response_stats": {
            key: _durations(value, _RESPONSE_DURATIONS) for key, value in entry.response_stats.items()
        },
    }
    stats["batch_stats"] = [
        {"batch_size": batch.batch_size, **_durations(batch, _BATCH_DURATIONS)} for batch in entry.batch_stats
    ]
    stats["memory_usage"] = [
        {"type": usage.type, "id": usage.id, "byte_size": usage.byte_size} for usage in entry.memory_usage
    ]
    return stats


def _durations(message: Any, names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    found = ((name, getattr(message, name)) for name in names)
    return {name: {"count": duration.count, "ns": duration.ns} for name, duration in found}


def encode_repository_index(index: pb.RepositoryIndexResponse) -> bytes:
    """Return the body of `POST /v2/repository/index`: a bare array, empty fields left out."""
    return to_json([_index_entry(entry) for entry in index.models])


def _index_entry(entry: pb.RepositoryIndexResponse.ModelIndex) -> dict[str, str]:
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {key: value for key, value in fields.items() if value or key == "name"}
