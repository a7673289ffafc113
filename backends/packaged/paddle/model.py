"""Executes Paddle models: `model.pdmodel`, or Paddle 3's `model.json`, with `model.pdiparams`.

In a process of its own, and each instance in one, because `run` holds the interpreter's lock. Instances that
share a process (INSTANCES_SHARE_PROCESS) have the weights once, and execute one after the other. Names and
texts are those of Triton's paddle backend; a configuration declares all inputs and outputs.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from backends.packaged.array_model import Array, ArrayModel, file_of

try:
    import paddle.inference as paddle
except ModuleNotFoundError as error:
    raise RuntimeError("the environment has no paddlepaddle") from error

_PROGRAMS: Final = ("model.pdmodel", "model.json")


class TritonPythonModel(ArrayModel):
    """One instance of a Paddle model."""

    def load(self) -> None:
        """Make a predictor, and check the names of its tensors."""
        config = paddle.Config(*self._files())
        config.disable_glog_info()
        if self.kind == "GPU":
            config.enable_use_gpu(100, self.device_id)
        else:
            config.disable_gpu()
            config.set_cpu_math_library_num_threads(self.threads())
            self._accelerate(config)
        self._predictor = paddle.create_predictor(config)
        self._check("input", self.inputs, self._predictor.get_input_names())
        self._fetched = self._outputs_by_name()

    def share(self, other: "TritonPythonModel") -> None:
        """Clone the predictor, which has the weights of the other."""
        self._predictor = other._predictor.clone()
        self._fetched = other._fetched

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the predictor, whose outputs are copied."""
        for name, array in inputs.items():
            self._predictor.get_input_handle(name).copy_from_cpu(array)
        self._predictor.run()
        return {
            name: self._predictor.get_output_handle(fetched).copy_to_cpu()
            for name, fetched in self._fetched.items()
        }

    def _files(self) -> tuple[str, str]:
        """Return the files of the program and of its weights, which are in the model's directory."""
        given = self.config.get("default_model_filename")
        names = (given,) if given else _PROGRAMS
        found = next((name for name in names if os.path.isfile(os.path.join(self.directory, name))), None)
        if found is None:
            raise pb_utils.TritonModelException("Paddle model should be named as 'model.pdmodel'")
        weights = os.path.splitext(found)[0] + ".pdiparams"
        return file_of(self.directory, found), file_of(self.directory, weights)

    def _accelerate(self, config: Any) -> None:
        """Turn on the accelerators that the configuration names."""
        optimization = self.config.get("optimization", {}).get("execution_accelerators", {})
        for accelerator in optimization.get("cpu_execution_accelerator", ()):
            name, parameters = accelerator["name"], accelerator.get("parameters", {})
            if name == "mkldnn":
                config.enable_onednn()
                config.set_onednn_cache_capacity(int(parameters.get("capacity", 10)))
                if "cpu_threads" in parameters:
                    config.set_cpu_math_library_num_threads(int(parameters["cpu_threads"]))
                if parameters.get("use_int8", "0") in ("1", "true"):
                    config.enable_onednn_int8()
            elif name == "ort":
                config.enable_onnxruntime()
                config.enable_ort_optimization()
            else:
                raise pb_utils.TritonModelException(
                    f"unknown cpu_execution_accelerator name '{name}' is provided. Available choices are"
                    " [mkldnn, ort]"
                )

    def _outputs_by_name(self) -> dict[str, str]:
        """Return the predictor's names of the outputs; by order, if it has none of the declared names.

        `paddle.jit.save` loses the names of results.
        """
        known = self._predictor.get_output_names()
        if not set(known) & set(self.outputs) and len(known) == len(self.outputs):
            return dict(zip(self.outputs, known, strict=True))
        self._check("output", self.outputs, known)
        return {name: name for name in self.outputs}

    def _check(self, direction: str, declared: list[str], known: list[str]) -> None:
        for name in declared:
            if name not in known:
                allowed = ", ".join(sorted(known))
                text = f"unexpected inference {direction} '{name}', allowed {direction}s are: {allowed}"
                raise pb_utils.TritonModelException(text)
