"""Schemas of the HTTP API's bodies, for its OpenAPI document.

They describe bodies and make none: requests are read by Triton's rules and responses are written in Triton's
key order, which validation and serialisation by pydantic would change.
"""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, RootModel

ModelName = Annotated[str, Path(description="Name of the model.")]
ModelVersion = Annotated[str, Path(description="Version of the model.", pattern="^[0-9]+$")]
RepositoryName = Annotated[str, Path(description="Not supported: a request that has one is refused.")]
RegionName = Annotated[str, Path(description="Name of the shared memory region.")]


class Error(BaseModel):
    """The reason of a failure."""

    error: str


class ServerMetadata(BaseModel):
    """Name, version and extensions of the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """Name, data type and shape of an input or output; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfiguration(BaseModel):
    """Configuration of a model: the fields of Triton's `ModelConfig` message."""

    model_config = ConfigDict(extra="allow")

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]


class Duration(BaseModel):
    """Number of events and their total time in nanoseconds."""

    count: int
    ns: int


class InferenceStatistics(BaseModel):
    """Durations of requests by outcome and stage."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class ResponseStatistics(BaseModel):
    """Durations of a decoupled model's responses at one position."""

    compute_infer: Duration
    compute_output: Duration
    success: Duration
    fail: Duration
    empty_response: Duration
    cancel: Duration


class BatchStatistics(BaseModel):
    """Durations of executions of one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class MemoryUsage(BaseModel):
    """Bytes of memory that a model uses on a device."""

    type: str
    id: int
    byte_size: int


class ModelStatistics(BaseModel):
    """Statistics of one version of a model; `last_inference` is in milliseconds since 1970."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    response_stats: dict[str, ResponseStatistics] = {}
    batch_stats: list[BatchStatistics]
    memory_usage: list[MemoryUsage]


class Statistics(BaseModel):
    """Statistics of models."""

    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    """`ready` leaves out versions that are not ready."""

    ready: bool = False


class IndexEntry(BaseModel):
    """A model of the repository, or a version of it."""

    name: str
    version: str = ""
    state: Literal["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"] = "UNKNOWN"
    reason: str = ""


class Index(RootModel[list[IndexEntry]]):
    """Models of the repository."""


class LoadRequest(BaseModel):
    """`parameters`: `config`, a model configuration as JSON, and `file:<path>`, base64 of a model file."""

    parameters: dict[str, str] = {}


class UnloadRequest(BaseModel):
    """`parameters`: `unload_dependents`, a boolean, unloads the models that an ensemble consists of."""

    parameters: dict[str, bool] = {}


class SystemRegion(BaseModel):
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(BaseModel):
    """A registered region of CUDA memory."""

    name: str
    device_id: int
    byte_size: int


class SystemRegions(RootModel[list[SystemRegion]]):
    """Registered regions of system shared memory."""


class CudaRegions(RootModel[list[CudaRegion]]):
    """Registered regions of CUDA memory."""


class RegisterSystemRegion(BaseModel):
    """`byte_size` bytes from `offset` of the shared memory object `key`."""

    key: str
    offset: int = Field(0, ge=0)
    byte_size: int = Field(ge=0)


class RegisterCudaRegion(BaseModel):
    """`raw_handle.b64` is base64 of a CUDA IPC memory handle."""

    raw_handle: dict[Literal["b64"], str]
    device_id: int = Field(ge=0)
    byte_size: int = Field(ge=0)


class LogSettings(BaseModel):
    """Settings of the log."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: Literal["default", "ISO8601"]


class LogSettingsChange(BaseModel):
    """Settings to change; null leaves one as it is."""

    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = Field(None, ge=0)
    log_format: Literal["default", "ISO8601"] | None = None


class TraceSettings(BaseModel):
    """Settings of tracing; further ones are those of the mode."""

    model_config = ConfigDict(extra="allow")

    trace_level: list[Literal["OFF", "TIMESTAMPS", "TENSORS"]]
    trace_rate: str
    trace_count: str
    trace_mode: Literal["triton", "opentelemetry"]
    log_frequency: str = ""
    trace_file: str = ""


class TraceSettingsChange(BaseModel):
    """Settings to change; null clears a model's own setting."""

    trace_level: list[Literal["OFF", "TIMESTAMPS", "TENSORS"]] | None = None
    trace_rate: str | None = None
    trace_count: str | None = None
    log_frequency: str | None = None


class TapeSettings(BaseModel):
    """What the tape records; null: of a model, the rate of its `tape.yaml`, else of the server."""

    recording: bool
    rate: float | None


class TapeSettingsChange(BaseModel):
    """Settings to change; null clears one."""

    recording: bool | None = None
    rate: float | None = Field(None, ge=0, le=1)
