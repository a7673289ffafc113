"""A model of OpenVINO that generates text, compiled for texts side by side."""

import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openvino
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

CACHES: Final = ("key_cache", "value_cache")
_PRECISIONS: Final = {"auto": "f32", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""OpenVINO's own default is bfloat16 where the processor has it: other texts on other machines."""
_BETWEEN: Final = frozenset({"Add", "Convert", "Divide", "Multiply", "Tanh"})
"""What may follow the head: biases, and limits of logits."""
_RAW: Final = {1: np.uint8, 2: np.uint16, 4: np.float32}


@dataclass(frozen=True)
class Network:
    """A compiled model.

    Attributes:
        compiled: of OpenVINO, with `sampled` for the tokens whose logits are wanted.
        shapes: of a block of keys and of one of values in each layer, [heads, places, width].
        type: of keys and values, as OpenVINO has it.
        kept: of the same size, as numpy has it.
        vocabulary: the number of logits.
        tells_hidden: whether it tells the hidden states that logits are made of.
    """

    compiled: Any
    shapes: list[tuple[list[int], list[int]]]
    type: Any
    kept: Any
    vocabulary: int
    tells_hidden: bool


def load_network(folder: str, dtype: str, threads: int) -> Network:
    """Load openvino_model.xml and the weights beside it, for the CPU.

    Args:
        folder: as `optimum-cli export openvino` writes it.
        dtype: to compute in.
        threads: the most that a step computes with.

    Raises:
        ValueError: it is damaged, or no model whose texts can be continued side by side, or the processor
            does not compute in `dtype`.
    """
    path = os.path.join(folder, "openvino_model.xml")
    core = openvino.Core()
    precision = _PRECISIONS[dtype]
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # each process would pin its threads to the same first cores
        "INFERENCE_PRECISION_HINT": precision,
    }
    if precision == "f32":
        options["KV_CACHE_PRECISION"] = "f16"
    try:
        model = core.read_model(path)
        paged_attention_transformation(model)
        hidden = _keep_sampled(model)
        compiled = core.compile_model(model, "CPU", options)
        found = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if found != precision:
            raise ValueError(f"dtype {dtype} is not of this processor: OpenVINO would compute in {found}")
        return _described(compiled, hidden)
    except (RuntimeError, KeyError, StopIteration) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"engine openvino cannot serve '{path}': {text[-1][:500]}") from error


def _keep_sampled(model: Any) -> bool:
    """Have logits made of chosen tokens alone; return whether their hidden states are an output now."""
    chosen = opset13.parameter([-1], np.int64, name="sampled")
    chosen.output(0).get_tensor().set_names({"sampled"})
    place = model.output("logits").get_node()
    node = place.input_value(0).get_node()
    while node.get_type_name() in _BETWEEN:
        node = node.input_value(0).get_node()
    head: bool = node.get_type_name() == "MatMul"
    target = (node if head else place).input(0)
    gathered = opset13.gather(target.get_source_output(), chosen, opset13.constant(0, np.int64))
    target.replace_source_output(gathered.output(0))
    model.add_parameters([chosen])
    if head:
        result = opset13.result(gathered)
        result.output(0).get_tensor().set_names({"hidden"})
        model.add_results([result])
    model.validate_nodes_and_infer_types()
    return head


def _described(compiled: Any, hidden: bool) -> Network:
    found = {port.get_any_name(): port for port in compiled.inputs}
    layers = sum(name.startswith(CACHES[0]) for name in found)
    if not layers:
        raise ValueError("engine openvino cannot serve the model: it has no attention that it knows")
    ports = [tuple(found[f"{name}.{layer}"] for name in CACHES) for layer in range(layers)]
    types = {port.get_element_type() for pair in ports for port in pair}
    if len(types) != 1:
        raise ValueError("engine openvino cannot serve the model: keys and values have different types")
    shapes = [(_block(keys), _block(values)) for keys, values in ports]
    (kind,) = types
    vocabulary = compiled.output("logits").get_partial_shape()[-1].get_length()
    return Network(compiled, shapes, kind, _RAW[kind.size], vocabulary, hidden)


def _block(port: Any) -> list[int]:
    return [size.get_length() for size in [*port.get_partial_shape()][1:]]
