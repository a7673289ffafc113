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
from backends.packaged.paddle.options import Cpu, TensorRt, check_instance, read_cpu, read_tensorrt

try:
    import paddle.inference as paddle
except ModuleNotFoundError as error:
    raise RuntimeError("the environment has no paddlepaddle") from error

_PROGRAMS: Final = ("model.pdmodel", "model.json")


class TritonPythonModel(ArrayModel):
    """One instance of a Paddle model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Say that nothing is completed, as Triton's backend does."""
        name = auto_complete_model_config.as_dict()["name"]
        pb_utils.Logger.log_warn(
            f"skipping model configuration auto-complete for '{name}': not supported for paddle backend"
        )
        return auto_complete_model_config

    def load(self) -> None:
        """Make a predictor, and check the names of its tensors."""
        self.require_tensors()
        check_instance(self.config, self.name, self.kind)
        config = paddle.Config(*self._files())
        config.disable_glog_info()
        cpu, tensorrt = read_cpu(self.config), read_tensorrt(self.config)
        if self.kind == "GPU":
            config.enable_use_gpu(100, self.device_id)
            self._use_tensorrt(config, tensorrt)
        else:
            config.disable_gpu()
            config.set_cpu_math_library_num_threads(cpu.threads or self.threads())
            self._use_cpu(config, cpu)
        pb_utils.Logger.log_verbose(f"Paddle's configuration of '{self.name}':\n{config.summary()}")
        self._predictor = paddle.create_predictor(config)
        known = self._predictor.get_input_names()
        self._check("input", self.inputs, known)
        if len(known) > len(self.inputs):
            raise pb_utils.TritonModelException(
                f"unable to load model '{self.name}', configuration expects {len(self.inputs)} inputs, model"
                f" provides {len(known)}: {', '.join(sorted(known))}"
            )
        self._fetched = self._outputs_by_name()
        self._find_handles()

    def share(self, other: "TritonPythonModel") -> None:
        """Clone the predictor, which has the weights of the other."""
        self._predictor = other._predictor.clone()
        self._fetched = other._fetched
        self._find_handles()

    def _find_handles(self) -> None:
        find_input, find_output = self._predictor.get_input_handle, self._predictor.get_output_handle
        self._given = {name: find_input(name) for name in self.inputs}
        self._found = {name: find_output(fetched) for name, fetched in self._fetched.items()}

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the predictor, whose outputs are copied."""
        for name, array in inputs.items():
            self._given[name].copy_from_cpu(array)
        self._predictor.run()
        return {name: handle.copy_to_cpu() for name, handle in self._found.items()}

    def _files(self) -> tuple[str, str]:
        """Return the files of the program and of its weights, which are in the model's directory."""
        given = self.config.get("default_model_filename")
        names = (given,) if given else _PROGRAMS
        found = next((name for name in names if os.path.isfile(os.path.join(self.directory, name))), None)
        if found is None:
            raise pb_utils.TritonModelException("Paddle model should be named as 'model.pdmodel'")
        weights = os.path.splitext(found)[0] + ".pdiparams"
        if not os.path.lexists(os.path.join(self.directory, weights)):
            pb_utils.Logger.log_info(f"Paddle params should be named as '{weights}' or not provided.")
            return file_of(self.directory, found), ""
        return file_of(self.directory, found), file_of(self.directory, weights)

    def _use_cpu(self, config: Any, cpu: Cpu) -> None:
        """Turn on the accelerators of a CPU. oneDNN is on by itself since Paddle 3."""
        if cpu.ort:
            config.enable_onnxruntime()
            config.enable_ort_optimization()
            if not config.onnxruntime_enabled():
                pb_utils.Logger.log_warn(
                    f"model '{self.name}': this Paddle was built without ONNX Runtime and executes the model"
                    " itself, without the accelerator 'ort'"
                )
        elif cpu.onednn:
            config.enable_onednn()
            config.set_onednn_cache_capacity(cpu.capacity)
            if cpu.int8:
                config.enable_onednn_int8()

    def _use_tensorrt(self, config: Any, wanted: TensorRt | None) -> None:
        """Turn on TensorRT, for the parts of the program that it can execute."""
        if wanted is None:
            return
        precisions = {"trt_fp32": "Float32", "trt_fp16": "Half", "trt_int8": "Int8"}
        config.enable_tensorrt_engine(
            workspace_size=wanted.workspace_size,
            max_batch_size=wanted.max_batch_size or max(1, int(self.config["max_batch_size"])),
            min_subgraph_size=wanted.min_graph_size,
            precision_mode=getattr(paddle.PrecisionType, precisions[wanted.precision]),
            use_static=False,
            use_calib_mode=False,
        )
        if wanted.enable_tensorrt_oss:
            config.enable_tensorrt_varseqlen()
        if wanted.is_dynamic:
            config.set_trt_dynamic_shape_info(
                *(wanted.shapes.get(name, {}) for name in ("min_shape", "max_shape", "opt_shape"))
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
