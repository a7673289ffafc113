"""Nereid inside a program, by the names of Triton's in-process Python API: see docs/use/in_process.md.

import nereid.inprocess as tritonserver

with tritonserver.Server(model_repository="/models") as server:
    for response in server.model("simple").infer(inputs={"INPUT0": array, "INPUT1": array}):
        print(numpy.from_dlpack(response.outputs["OUTPUT0"]))
"""

from types import SimpleNamespace

from nereid.internals import is_replaced

if not is_replaced(__name__):
    from app.core.installed.installation import server_version
    from nereid.inprocess.errors import (
        AlreadyExistsError,
        CancelledError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        TritonError,
        UnavailableError,
        UnknownError,
        UnsupportedError,
    )
    from nereid.inprocess.fronts import KServeGrpc, KServeHttp, Metrics
    from nereid.inprocess.inference import (
        AsyncResponseIterator,
        InferenceRequest,
        InferenceResponse,
        ResponseIterator,
    )
    from nereid.inprocess.kinds import (
        DataType,
        DLDeviceType,
        InstanceGroupKind,
        LogFormat,
        LogLevel,
        MemoryType,
        MetricFormat,
        MetricKind,
        ModelBatchFlag,
        ModelControlMode,
        ModelTxnPropertyFlag,
        RateLimitMode,
        RequestFlag,
    )
    from nereid.inprocess.metrics import Metric, MetricFamily
    from nereid.inprocess.model import Model
    from nereid.inprocess.options import ModelLoadDeviceLimit, Options, RateLimiterResource
    from nereid.inprocess.server import ModelDictionary, Server
    from nereid.inprocess.tensors import MemoryBuffer, Tensor

    # Where programs written for older releases of Triton look for these, as attributes.
    _api = SimpleNamespace(
        _dlpack=SimpleNamespace(DLDeviceType=DLDeviceType),
        _memorybuffer=SimpleNamespace(MemoryBuffer=MemoryBuffer),
        _model=SimpleNamespace(Model=Model),
        _request=SimpleNamespace(InferenceRequest=InferenceRequest),
        _response=SimpleNamespace(
            AsyncResponseIterator=AsyncResponseIterator,
            InferenceResponse=InferenceResponse,
            ResponseIterator=ResponseIterator,
        ),
        _server=SimpleNamespace(Options=Options, Server=Server),
        _tensor=SimpleNamespace(DataType=DataType, Tensor=Tensor),
    )
    __version__ = server_version()

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "KServeGrpc",
    "KServeHttp",
    "LogFormat",
    "LogLevel",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Metrics",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "RequestFlag",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
