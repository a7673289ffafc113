"""The enumerations of the in-process API, with the numbers of Triton's C API."""

from enum import IntEnum, IntFlag


class DataType(IntEnum):
    """Data types of tensors."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


class MemoryType(IntEnum):
    """Where a buffer is."""

    CPU = 0
    CPU_PINNED = 1
    GPU = 2


class DLDeviceType(IntEnum):
    """Devices of DLPack."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3


class InstanceGroupKind(IntEnum):
    """Kinds of instance groups."""

    AUTO = 0
    CPU = 1
    GPU = 2
    MODEL = 3


class LogFormat(IntEnum):
    """Formats of a log line's time and severity."""

    DEFAULT = 0
    ISO8601 = 1


class LogLevel(IntEnum):
    """Levels of log messages."""

    INFO = 0
    WARN = 1
    ERROR = 2
    VERBOSE = 3


class MetricFormat(IntEnum):
    """Formats of metrics."""

    PROMETHEUS = 0


class MetricKind(IntEnum):
    """Kinds of metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class ModelControlMode(IntEnum):
    """Which models are loaded, and when."""

    NONE = 0
    POLL = 1
    EXPLICIT = 2


class RateLimitMode(IntEnum):
    """How instances are chosen."""

    OFF = 0
    EXEC_COUNT = 1


class ModelBatchFlag(IntEnum):
    """Whether a model batches."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(IntEnum):
    """How many responses a request has."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


class RequestFlag(IntFlag):
    """Flags of a request."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2
