"""A DALI pipeline as one instance runs it."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import nvidia.dali as dali

from backends.packaged.array_model import Array
from backends.packaged.dali.completion import Described, PipelineTensor

_DATA_TYPES: Final = {
    "FLOAT16": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "FLOAT64": "TYPE_FP64",
    "BOOL": "TYPE_BOOL",
    **{f"{sign}INT{bits}": f"TYPE_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
_PARAMETER_BYTES: Final = 256
"""More than daliPipelineParams_t; zeros change nothing."""


class Pipeline:
    """A pipeline that is built again when it has failed, because then DALI runs it no more."""

    def __init__(self, serialized: bytes, **options: Any) -> None:
        """Build a pipeline; `options` are DALI's, None for the pipeline's own."""
        self._serialized = serialized
        # Without a queue and a thread of its own: a batch is wanted at once, and the next one is not known.
        self._options = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1, **options}
        self._build()

    def run(self, samples: Mapping[str, Sequence[Array]]) -> list[Any]:
        """Run a batch; return DALI's list of samples for each output, in memory that the next run uses.

        Raises:
            RuntimeError: DALI's, of a picture that is none, say.
        """
        try:
            return [found.as_cpu() for found in self._pipeline.run(**samples)]
        except Exception:
            self._build()
            raise

    def _build(self) -> None:
        options = {name: value for name, value in self._options.items() if value is not None}
        self._pipeline = dali.Pipeline.deserialize(self._serialized, **options)


class _Tensor(ctypes.Structure):
    """Is daliPipelineIODesc_t of include/dali/dali.h, DALI 2."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("device", ctypes.c_int),
        ("has_dtype", ctypes.c_uint, 1),
        ("has_ndim", ctypes.c_uint, 1),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("layout", ctypes.c_char_p),
    )


def describe(serialized: bytes) -> Described:
    """Return what a pipeline declares; DALI's Python has no function for the inputs of a serialized one.

    Raises:
        RuntimeError: DALI's, for no valid pipeline.
    """
    pipeline = dali.Pipeline.deserialize(serialized)
    library = ctypes.CDLL(os.path.join(os.path.dirname(dali.__file__), "libdali.so"))
    handle = ctypes.c_void_p()
    zeros = ctypes.create_string_buffer(_PARAMETER_BYTES)
    size = ctypes.c_size_t(len(serialized))
    _check(library, library.daliPipelineDeserialize(ctypes.byref(handle), serialized, size, zeros))
    try:
        _check(library, library.daliPipelineBuild(handle))
        inputs = _tensors(library, handle, "Input", "daliPipelineGetInputDescByIdx")
        outputs = _tensors(library, handle, "Output", "daliPipelineGetOutputDesc")
    finally:
        library.daliPipelineDestroy(handle)
    return Described(inputs, outputs, pipeline.max_batch_size, pipeline.num_threads)


def _tensors(library: Any, handle: Any, what: str, function: str) -> list[PipelineTensor]:
    count, found = ctypes.c_int(), []
    _check(library, getattr(library, f"daliPipelineGet{what}Count")(handle, ctypes.byref(count)))
    for index in range(count.value):
        tensor = _Tensor()
        _check(library, getattr(library, function)(handle, ctypes.byref(tensor), index))
        kind = dali.types.DALIDataType(tensor.dtype).name if tensor.has_dtype else ""
        ndim = tensor.ndim if tensor.has_ndim else None
        found.append(PipelineTensor(tensor.name.decode(), _DATA_TYPES.get(kind, ""), ndim))
    return found


def _check(library: Any, result: int) -> None:
    if result < 0:
        library.daliGetLastErrorMessage.restype = ctypes.c_char_p
        raise RuntimeError((library.daliGetLastErrorMessage() or b"").decode(errors="replace"))
