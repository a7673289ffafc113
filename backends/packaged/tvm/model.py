"""Executes models that Apache TVM has compiled: `model.so`, by Relax's virtual machine.

Triton has no such backend, so names and parameters are ours. A configuration declares all inputs and outputs.
"""

import os
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from backends.packaged.array_model import Array, ArrayModel, file_of

try:
    import tvm
except ModuleNotFoundError as error:
    raise RuntimeError("the environment has no apache-tvm") from error


class TritonPythonModel(ArrayModel):
    """One instance of a compiled model."""

    def load(self) -> None:
        """Load the library, and check the names of the inputs against its function's parameters."""
        self.require_tensors()
        self._device = tvm.cuda(self.device_id) if self.kind == "GPU" else tvm.cpu()
        # Read when TVM starts its threads. Bound to cores, those of all instances would share the first ones.
        os.environ["TVM_NUM_THREADS"] = str(self.threads())
        os.environ["TVM_BIND_THREADS"] = "0"
        self._machine = tvm.relax.VirtualMachine(self._library(), self._device)
        self._function = self._find(self.parameter("function") or "main")

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the function, whose results are copied."""
        arrays = (inputs[name] for name in self._arguments)
        returned = self._function(*(tvm.runtime.tensor(array, self._device) for array in arrays))
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        if len(results) != len(self.outputs):
            raise ValueError(f"the model returns {len(results)} tensors for {len(self.outputs)} outputs")
        return {name: result.numpy() for name, result in zip(self.outputs, results, strict=True)}

    def _library(self) -> Any:
        """Load the library of the model's directory."""
        path = file_of(self.directory, self.config.get("default_model_filename") or "model.so")
        if not os.path.isfile(path):
            raise pb_utils.TritonModelException(f"unable to find '{path}' for model '{self.name}'")
        return tvm.runtime.load_module(path)

    def _find(self, name: str) -> Any:
        """Return a function, and keep the order of its arguments."""
        describe = self._machine.module
        try:
            function = self._machine[name]
        except AttributeError:
            raise pb_utils.TritonModelException(
                f"model '{self.name}' has no function '{name}'; parameter 'function' names another"
            ) from None
        count = describe["get_function_arity"](name)
        self._arguments = [str(describe["get_function_param_name"](name, index)) for index in range(count)]
        if sorted(self._arguments) != sorted(self.inputs):
            raise pb_utils.TritonModelException(
                f"model '{self.name}': function '{name}' has the parameters {', '.join(self._arguments)}, but"
                f" the configuration the inputs {', '.join(self.inputs)}"
            )
        return function
