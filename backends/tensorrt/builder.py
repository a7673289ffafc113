"""Builds TensorRT engines from ONNX models at load."""

import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tensorrt as trt
import torch

from app.core.errors import internal, invalid_arg
from app.core.whole_files import write_whole
from backends.base import Model
from backends.tensorrt.build_options import BuildOptions, build_options, engine_key, profile
from backends.tensorrt.engine_cache import EngineCache
from backends.tensorrt.runtime import LOG, load_plugins

logger = logging.getLogger(__name__)

_CACHE_BYTES: Final = "engine-cache-bytes"
_DEFAULT_BYTES: Final = 20 << 30
_REPORTED_S: Final = 10.0


class _Progress(trt.IProgressMonitor):  # type: ignore[misc]
    """Logs how far a build is, every ten seconds."""

    def __init__(self, model: str) -> None:
        trt.IProgressMonitor.__init__(self)
        self._model = model
        self._steps: dict[str, int] = {}
        self._reported = time.monotonic()

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Remember a phase; called by TensorRT on any thread, as the others are."""
        self._steps[phase_name] = num_steps

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Report a step; return True to go on."""
        now = time.monotonic()
        if now - self._reported >= _REPORTED_S:
            self._reported = now
            of = self._steps.get(phase_name, 0)
            logger.info(
                "building the engine of model '%s': %s, %d of %d", self._model, phase_name, step + 1, of
            )
        return True

    def phase_finish(self, phase_name: str) -> None:
        """Forget a phase."""
        self._steps.pop(phase_name, None)


def built_plan(model: Model, path: Path, device: torch.device) -> Path:
    """Return the plan of an ONNX model, built on this GPU unless the node has it.

    Raises:
        InferError: INVALID_ARG for parameters or a model that TensorRT cannot build, INTERNAL for a failure.
    """
    options = build_options(model)
    machine = f"TensorRT {trt.__version__} {torch.cuda.get_device_name(device)}"
    # Weights may lie beside the model; what else is there makes a build too many at worst.
    files = sorted(each for each in path.parent.iterdir() if each.is_file())
    key = engine_key(files, model.config, options, machine)
    cache = EngineCache(_cache_bytes(model.backend_config))
    name = re.sub(r"[^A-Za-z0-9.]+", "-", machine)
    return cache.get(key, name, lambda timings: _build(model, path, options, device, timings))


def _cache_bytes(settings: Mapping[str, str]) -> int:
    value = settings.get(_CACHE_BYTES) or str(_DEFAULT_BYTES)
    if not value.isdecimal():
        raise invalid_arg(f"--backend-config=tensorrt,{_CACHE_BYTES} must be a number, got '{value}'")
    return int(value)


def _build(model: Model, path: Path, options: BuildOptions, device: torch.device, timings: Path) -> bytes:
    began = time.monotonic()
    logger.info("building the engine of model '%s' from '%s', which takes minutes", model.name, path)
    load_plugins(model.backend_config)
    with torch.cuda.device(device):
        builder = trt.Builder(LOG)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, LOG)
        if not parser.parse_from_file(str(path)):
            errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
            raise invalid_arg(f"unable to build an engine of model '{model.name}' from '{path}': {errors}")
        config = _config(builder, network, model, options)
        progress = _Progress(model.name)  # must live as long as the build
        config.progress_monitor = progress
        cache = config.create_timing_cache(timings.read_bytes() if timings.exists() else b"")
        config.set_timing_cache(cache, False)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise internal(f"unable to build an engine of model '{model.name}': {LOG.last_error}")
        write_whole(timings, bytes(config.get_timing_cache().serialize()))
    logger.info("built the engine of model '%s' in %.0f s", model.name, time.monotonic() - began)
    return bytes(plan)


def _config(builder: Any, network: Any, model: Model, options: BuildOptions) -> Any:
    config = builder.create_builder_config()
    flags = {"FP16": ("FP16",), "BF16": ("BF16",), "INT8": ("INT8", "FP16")}  # of INT8, the rest in FP16
    for name in flags.get(options.precision, ()):
        config.set_flag(getattr(trt.BuilderFlag, name))
    if options.level is not None:
        config.builder_optimization_level = options.level
    if options.workspace_bytes:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    inputs = {
        tensor.name: tuple(tensor.shape) for tensor in map(network.get_input, range(network.num_inputs))
    }
    ranges = profile(model.config, options, inputs)
    if ranges:
        optimization = builder.create_optimization_profile()
        for name, sizes in ranges.items():
            optimization.set_shape(name, *sizes)
        if config.add_optimization_profile(optimization) < 0:
            raise invalid_arg(f"TensorRT refuses the profile of model '{model.name}': {LOG.last_error}")
    return config
