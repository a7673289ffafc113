"""Completion and check of a configuration by what a DALI pipeline declares; imports no DALI.

Rules and texts are those of src/config_tools/config_tools.cc in Triton's dali_backend.
"""

import os
import re
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import triton_python_backend_utils as pb_utils

_MAX_BATCH_SIZE: Final = re.compile(r"^[^#\"\n]*\bmax_batch_size\s*:\s*0\b", re.MULTILINE)
_SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")

Config = dict[str, Any]


class PipelineTensor(NamedTuple):
    """An input or output: data type as TYPE_FP32, "" if unknown; dimensions of a sample, None if unknown."""

    name: str
    data_type: str
    ndim: int | None


class Described(NamedTuple):
    """What a pipeline declares."""

    inputs: Sequence[PipelineTensor]
    outputs: Sequence[PipelineTensor]
    max_batch_size: int
    num_threads: int

    def split(self, names: Collection[str]) -> "Described":
        """Return the same with outputs of these names less their outer axis."""
        outputs = [
            each._replace(ndim=each.ndim - 1) if each.ndim and each.name in names else each
            for each in self.outputs
        ]
        return self._replace(outputs=outputs)


def is_batched(directory: str) -> bool:
    """Whether a model has batches: all but those whose config.pbtxt says `max_batch_size: 0`.

    Args:
        directory: the model's.
    """
    try:
        with open(os.path.join(directory, "config.pbtxt"), encoding="utf-8", errors="replace") as file:
            return _MAX_BATCH_SIZE.search(file.read()) is None
    except OSError:
        return True


def complete(config: Config, described: Described, batched: bool) -> None:
    """Complete a configuration in place.

    Raises:
        TritonModelException: it contradicts the pipeline.
    """
    _check_names(config, described)
    by_name = {tensor["name"]: tensor for tensor in config["input"]}
    for known in described.inputs:
        declared = by_name.get(known.name)
        if declared is None:
            declared = {"name": known.name}
            config["input"].append(declared)
        _complete_tensor(declared, known, batched)
        declared["allow_ragged_batch"] = True
    config["output"] += [{} for _ in described.outputs[len(config["output"]) :]]
    for declared, known in zip(config["output"], described.outputs, strict=True):
        _complete_tensor(declared, known, batched)
    if batched:
        config["max_batch_size"] = config["max_batch_size"] or described.max_batch_size
        if not any(scheduler in config for scheduler in _SCHEDULERS):
            config["dynamic_batching"] = {}
    check(config, described, batched)


def check(config: Config, described: Described, batched: bool) -> None:
    """Compare a complete configuration with a pipeline.

    Raises:
        TritonModelException: it contradicts the pipeline, or lacks a tensor or its data type.
    """
    _check_names(config, described)
    if len(config["output"]) != len(described.outputs):
        raise _outputs_differ(config, described)
    by_name = {tensor["name"]: tensor for tensor in config["input"]}
    for known in described.inputs:
        if known.name not in by_name:
            raise _invalid(f'Missing config for "{known.name}" input.')
        _check_tensor(by_name[known.name], known, batched)
    for declared, known in zip(config["output"], described.outputs, strict=True):
        _check_tensor(declared, known, batched)


def _check_names(config: Config, described: Described) -> None:
    known = {tensor.name for tensor in described.inputs}
    for declared in config["input"]:
        if declared["name"] not in known:
            raise _invalid(
                f"Configuration file contains config for {declared['name']} but such input is not present in"
                " the pipeline."
            )
    if len(config["output"]) > len(described.outputs):
        raise _outputs_differ(config, described)


def _complete_tensor(declared: Config, known: PipelineTensor, batched: bool) -> None:
    declared["name"] = declared.get("name") or known.name
    if declared.get("data_type", "TYPE_INVALID") == "TYPE_INVALID" and known.data_type:
        declared["data_type"] = known.data_type
    if not declared.get("dims") and known.ndim is not None:
        declared["dims"] = [-1] * _rank(known, batched)


def _check_tensor(declared: Config, known: PipelineTensor, batched: bool) -> None:
    name, data_type = declared["name"], declared.get("data_type", "TYPE_INVALID")
    if data_type == "TYPE_INVALID":
        raise _invalid(f'Missing data_type config for "{name}"')
    if known.data_type and data_type != known.data_type:
        raise _invalid(
            f'Mismatch of data_type config for "{name}".\nData type defined in config: {data_type}\n'
            f"Data type defined in pipeline: {known.data_type}"
        )
    dims = declared.get("dims", [])
    if known.ndim is not None and len(dims) != _rank(known, batched):
        raise _invalid(
            f'Mismatch in number of dimensions for "{name}"\nNumber of dimensions defined in config:'
            f" {len(dims)}\nNumber of dimensions defined in pipeline: {_rank(known, batched)}"
        )


def _rank(known: PipelineTensor, batched: bool) -> int:
    return (known.ndim or 0) + (not batched)


def _outputs_differ(config: Config, described: Described) -> Exception:
    return _invalid(
        "The number of outputs specified in the DALI pipeline and the configuration file do not match."
        f"\nModel config outputs: {len(config['output'])}\nPipeline outputs: {len(described.outputs)}"
    )


def _invalid(text: str) -> Exception:
    error: Exception = pb_utils.TritonModelException(text)
    return error
