"""Executes DALI pipelines: `model.dali`, serialized, or `dali.py` with an `@autoserialize` pipeline.

In a process of its own, which executes the Python of the model. The requests of a batch are one batch of
DALI, whose samples may differ in shape. Parameters and texts are those of Triton's dali_backend.
"""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from backends.packaged.array_model import Array, ArrayModel

try:
    from nvidia.dali import plugin_manager
except ModuleNotFoundError as error:
    raise RuntimeError("the environment has no nvidia-dali-cuda120") from error

from backends.packaged.dali.completion import Config, check, complete, is_batched
from backends.packaged.dali.files import read_pipeline
from backends.packaged.dali.pipeline import Pipeline, describe


class TritonPythonModel(ArrayModel):
    """One instance of a DALI model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Complete the tensors and the batch size by the pipeline."""
        config = auto_complete_model_config.as_dict()
        _load_plugins(auto_complete_model_config.backend_config)
        directory = pb_utils.get_model_dir()
        gpu = any(group.get("kind") == "KIND_GPU" for group in config.get("instance_group", ()))
        described = describe(read_pipeline(directory, config.get("default_model_filename", ""), gpu))
        complete(config, described.split(_split_outputs(config)), is_batched(os.path.dirname(directory)))
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the libraries of operators, then the model."""
        _load_plugins(json.loads(args["backend_config"]))
        super().initialize(args)

    def load(self) -> None:
        """Build the pipeline, and check the configuration against it."""
        gpu = self.kind == "GPU"
        serialized = read_pipeline(self.directory, self.config.get("default_model_filename", ""), gpu)
        described = describe(serialized)
        batch_size, self._split = int(self.config["max_batch_size"]), _split_outputs(self.config)
        check(self.config, described.split(self._split), batch_size > 0)
        threads = self.threads()
        self._pipeline = Pipeline(
            serialized,
            batch_size=batch_size or None,
            num_threads=threads if self.parameter("num_threads") else min(described.num_threads, threads),
            device_id=self.device_id if gpu else None,
        )

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the samples of one request."""
        (found,) = self._run([inputs])
        return found

    def run_together(self, requests: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array]]:
        """Run the samples of several requests as one batch."""
        return self._run(requests)

    def _run(self, requests: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        samples = {name: [sample for each in requests for sample in each[name]] for name in self.inputs}
        ends = list(accumulate(len(each[self.inputs[0]]) for each in requests))
        parts = {
            name: _parts(name, found, ends, name in self._split)
            for name, found in zip(self.outputs, self._pipeline.run(samples), strict=True)
        }
        return [{name: parts[name][index] for name in parts} for index in range(len(requests))]


def _parts(name: str, samples: Any, ends: Sequence[int], split: bool) -> list[Array]:
    """Copy the samples of an output, an array for each request; `split` joins them along their outer axis."""
    if len(samples) != ends[-1]:
        raise ValueError(f"output '{name}' has {len(samples)} samples for a batch of {ends[-1]}")
    if not split and samples.is_dense_tensor():
        return list(np.split(samples.as_array(), ends[:-1]))
    each = [samples.at(index) for index in range(ends[-1])]
    begins = (0, *ends[:-1])
    return [_joined(name, each[begin:end], split) for begin, end in zip(begins, ends, strict=True)]


def _joined(name: str, samples: Sequence[Array], split: bool) -> Array:
    try:
        return np.concatenate(samples) if split else np.stack(samples)
    except ValueError:
        shapes = ", ".join(sorted({str(sample.shape) for sample in samples}))
        raise ValueError(
            f"DALI Backend error: samples of output '{name}' in one request differ in shape: {shapes}; resize"
            " or pad them in the pipeline, or send requests of one sample"
        ) from None


def _split_outputs(config: Config) -> list[str]:
    given = config.get("parameters", {}).get("split_along_outer_axis", {})
    return str(given.get("string_value", "")).split(":")


def _load_plugins(settings: Mapping[str, str]) -> None:
    """Load the libraries of operators that `--backend-config=dali,plugin_libs=A.so:B.so` names."""
    for path in filter(None, settings.get("plugin_libs", "").split(":")):
        try:
            plugin_manager.load_library(path)
        except Exception as error:
            pb_utils.Logger.log_error(f"Failed to load plugin libs: {error}")
