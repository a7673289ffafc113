"""Flags of tritonserver about its internals: accepted, checked, and without effect here."""

from typing import Any, Final

from app.settings.flag.flags import Flag, Setting

_INT_MAX: Final = 2**31 - 1


def _ignored(name: str, default: bool | int | float | str, help: str, **limits: Any) -> Setting:
    return Setting(name, "", (), type(default), default, Flag(name, help, **limits))


def _repeated(name: str, help: str) -> Setting:
    return Setting(name, "", (), tuple[str, ...], (), Flag(name, help, pair=":"))


_ROWS: Final = (
    _ignored("http_thread_count", 8, "Threads of the HTTP front.", low=1),
    _ignored("grpc_infer_thread_count", 2, "Threads of the gRPC front.", low=2, high=128),
    _ignored("grpc_infer_allocation_pool_size", 8, "Request states kept for reuse.", low=0),
    _ignored("grpc_max_response_pool_size", _INT_MAX, "Response messages kept for reuse.", low=1),
    _ignored("grpc_http2_max_pings_without_data", 2, "Pings without data in between.", low=0, high=_INT_MAX),
    _ignored("sagemaker_thread_count", 8, "Threads of the SageMaker front.", low=1),
    _ignored("vertex_ai_thread_count", 8, "Threads of the Vertex AI front.", low=1),
    _ignored("buffer_manager_thread_count", 0, "Threads that copy tensors.", low=0),
    _ignored("pinned_memory_pool_byte_size", 268435456, "Bytes of pinned memory.", low=0),
    _repeated("cuda_memory_pool_byte_size", "GPU:BYTES of memory pools; may be repeated."),
    _repeated("cuda_virtual_address_size", "GPU:BYTES of addresses; may be repeated."),
    _ignored("min_supported_compute_capability", 6.0, "Minimum compute capability of GPUs.", low=0),
    _ignored("enable_peer_access", True, "Let GPUs copy from each other."),
    _ignored("cache_directory", "/opt/tritonserver/caches", "Directory of cache implementations."),
)

IGNORED: Final = {row.name: row for row in _ROWS}
"""The flags by name, with tritonserver's types and defaults."""
