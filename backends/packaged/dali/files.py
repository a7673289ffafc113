"""The files of a DALI model: a serialized pipeline, or Python that defines one.

Their order and the text are those of DaliModel::LoadModel in Triton's dali_backend.
"""

import os
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from typing import Final

import nvidia.dali as dali
import triton_python_backend_utils as pb_utils
from nvidia.dali._utils.autoserialize import invoke_autoserialize

from backends.packaged.array_model import file_of

_DEFAULT: Final = "model.dali"
_FALLBACK: Final = "dali.py"
_MODULE: Final = "autoserialize_mod"
_CPU_ONLY: Final = b"\x40\xe1\xf2\xf9\xff\xff\xff\xff\xff\xff\x01"
"""Field `device_id` of a serialized pipeline with DALI's number for no device, -99999."""


def read_pipeline(directory: str, given: str, gpu: bool) -> bytes:
    """Return the serialized pipeline of a version's directory.

    Args:
        directory: the version's.
        given: `default_model_filename`, or "".
        gpu: whether it is for a GPU; a pipeline for a CPU needs no driver, whatever it was written for.

    Raises:
        TritonModelException: no file has a pipeline; the text has the reason of each.
    """
    first, fallback = (file_of(directory, name) for name in (given or _DEFAULT, _FALLBACK))
    readers = [(first, _read), *((path, _serialize) for path in (first, fallback) if path.endswith(".py"))]
    reasons = []
    for path, read in readers:
        try:
            serialized = read(path)
            # A field that comes twice has its last value.
            return _checked(serialized if gpu else serialized + _CPU_ONLY)
        except Exception as error:
            reasons.append(f"{os.path.basename(path)}: {error}")
    raise pb_utils.TritonModelException(
        "DALI Backend error: Failed to load model file. The program looked in the following locations:"
        f" {first}, {fallback}. Please make sure that the model exists in any of the locations and is"
        f" properly serialized or can be properly serialized. ({'; '.join(reasons)})"
    )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _serialize(path: str) -> bytes:
    """Execute a Python file, and serialize the only function in it with `@autoserialize`."""
    spec = spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = module_from_spec(spec)
    sys.modules[_MODULE] = module
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "model.dali")
        spec.loader.exec_module(module)
        invoke_autoserialize(module, target)
        return _read(target)


def _checked(serialized: bytes) -> bytes:
    dali.Pipeline.deserialize(serialized)
    return serialized
