"""Flags of tritonserver that describe how it is built inside: accepted, checked, and without effect here."""

from typing import Annotated as A
from typing import Final

import msgspec

from app.settings.flags import Flag, table

_INT_MAX: Final = 2**31 - 1


class IgnoredSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Their types and defaults are tritonserver's."""

    http_thread_count: A[int, Flag("Threads of the HTTP front.", low=1)] = 8
    grpc_infer_thread_count: A[int, Flag("Threads of the gRPC front.", low=2, high=128)] = 2
    grpc_infer_allocation_pool_size: A[int, Flag("Request states kept for reuse.", low=0)] = 8
    grpc_max_response_pool_size: A[int, Flag("Response messages kept for reuse.", low=1)] = _INT_MAX
    grpc_http2_max_pings_without_data: A[
        int, Flag("Pings sent without data between; 0: any.", low=0, high=_INT_MAX)
    ] = 2
    sagemaker_thread_count: A[int, Flag("Threads of the SageMaker front.", low=1)] = 8
    vertex_ai_thread_count: A[int, Flag("Threads of the Vertex AI front.", low=1)] = 8
    buffer_manager_thread_count: A[int, Flag("Threads that copy tensors.", low=0)] = 0
    pinned_memory_pool_byte_size: A[int, Flag("Bytes of pinned memory.", low=0)] = 268435456
    cuda_memory_pool_byte_size: A[
        tuple[str, ...], Flag("GPU:BYTES of memory pools; may be repeated.", pair=":")
    ] = ()
    cuda_virtual_address_size: A[
        tuple[str, ...], Flag("GPU:BYTES of addresses; may be repeated.", pair=":")
    ] = ()
    min_supported_compute_capability: A[float, Flag("Oldest GPU used.", low=0)] = 6.0
    enable_peer_access: A[bool, Flag("Let GPUs copy from each other.")] = True
    cache_directory: A[str, Flag("Directory of cache implementations.")] = "/opt/tritonserver/caches"


IGNORED: Final = table(IgnoredSettings)
