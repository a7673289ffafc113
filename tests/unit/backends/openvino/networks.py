"""Small models, made by OpenVINO's own operators."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from backends.base import Model
from tests.unit.backend_harness import config


def parameter(name: str, shape: Sequence[int], dtype: Any = np.float32, layout: str = "") -> Any:
    """An input of a model."""
    node = op.parameter(list(shape), dtype, name=name)
    node.output(0).get_tensor().set_names({name})
    if layout:
        node.set_layout(ov.Layout(layout))
    return node


def result(name: str, value: Any, layout: str = "") -> Any:
    """An output of a model; `value` is a node, or an output of one."""
    port = value if isinstance(value, ov.Output) else value.output(0)
    port.get_tensor().set_names({name})
    node = op.result(port)
    if layout:
        node.set_layout(ov.Layout(layout))
    return node


def save(folder: Path, inputs: Sequence[Any], outputs: Sequence[Any], name: str = "model.xml") -> Path:
    """Write a model into `<folder>/1`, and return the folder."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    ov.save_model(ov.Model(list(outputs), list(inputs), "m"), folder / "1" / name, compress_to_fp16=False)
    return folder


def sums(folder: Path, shape: Sequence[int] = (-1, 4), dtype: Any = np.float32, layout: str = "") -> Path:
    """SUM = A + B and DOUBLE = 2 A."""
    a, b = parameter("A", shape, dtype, layout), parameter("B", shape, dtype, layout)
    two = op.constant(np.array(2, dtype))
    outputs = [result("SUM", op.add(a, b), layout), result("DOUBLE", op.multiply(a, two), layout)]
    return save(folder, [a, b], outputs)


def model(folder: Path, text: str = "", **settings: str) -> Model:
    """The model in a folder, with this configuration beside its name."""
    settings = {key.replace("_", "-"): value for key, value in settings.items()}
    return Model(config(f'name: "m" backend: "openvino" {text}'), 1, folder, settings)


def parameters(**values: str) -> str:
    """Parameters of a configuration."""
    return " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )
