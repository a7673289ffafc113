"""OpenVINO's runtime, one for the process."""

from functools import cache
from typing import Final

import numpy as np
import openvino as ov

from app.core.errors import InferError, internal, invalid_arg
from backends.base import Model
from backends.load_locks import loading
from backends.openvino.properties import Properties
from backends.parameters import library_path

_EXTENSIONS: Final = "extension-directory"


def core() -> ov.Core:
    """Return the runtime, which finds devices and readers of formats when they are first needed."""
    with loading("openvino"):
        return _core()


@cache
def _core() -> ov.Core:
    # These make OpenVINO's tables of numpy's types, which would let two threads wait for each other for ever:
    # one has the table and wants the interpreter, the other has the interpreter and wants the table.
    ov.Type.f32.to_dtype()
    ov.Tensor(np.zeros(1, np.float32))
    return ov.Core()


def explained(action: str, error: Exception) -> InferError:
    """Return a failure in Triton's words and OpenVINO's last line; the others name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return internal(f"openvino error in {action} : {lines[-1] if lines else type(error).__name__}")


def compile_network(network: ov.Model, device: str, properties: Properties) -> ov.CompiledModel:
    """Compile a model for a device.

    Raises:
        InferError: INTERNAL when OpenVINO cannot.
    """
    try:
        return core().compile_model(network, device, properties)
    except Exception as error:
        raise explained("loading model", error) from error


def load_extension(model: Model) -> None:
    """Load the library of operators that CPU_EXTENSION_PATH names.

    A configuration may come from a client, and a library is code: it must lie in the model's directory, or
    below `--backend-config=openvino,extension-directory=DIRECTORY`.

    Raises:
        InferError: INVALID_ARG for a library elsewhere, INTERNAL for one that cannot be loaded.
    """
    name = model.parameter("CPU_EXTENSION_PATH")
    if not name:
        return
    path = library_path(model, name, _EXTENSIONS)
    if path is None:
        raise invalid_arg(
            f"the parameter 'CPU_EXTENSION_PATH' of model '{model.name}' names '{name}', outside the model's"
            f" directory: --backend-config=openvino,{_EXTENSIONS}=DIRECTORY allows libraries below another"
        )
    with loading("openvino"):
        _add_extension(str(path))


@cache
def _add_extension(path: str) -> None:
    try:
        core().add_extension(path)
    except Exception as error:
        raise explained("loading custom CPU extensions", error) from error
