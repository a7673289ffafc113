"""Small ONNX models, and functions that build candidates of them, as a trial calls them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def classifier(path: Path, opset: int = 17, convolutions: int = 6, seed: int = 0, scale: float = 6.0) -> None:
    """Write a model of 8 x 8 pictures in three colours to the probabilities of five classes."""
    rng = np.random.default_rng(seed)
    nodes, weights, last, channels = [], [], "x", 3
    for number in range(convolutions):
        shape = (8, channels, 3, 3)
        weights.append(_weight(f"w{number}", rng.normal(size=shape) / np.sqrt(9 * channels)))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last, channels = f"r{number}", 8
    weights.append(_weight("last", scale * rng.normal(size=(8 * 64, 5)) / np.sqrt(8 * 64)))
    nodes += [
        helper.make_node("Flatten", [last], ["flat"]),
        helper.make_node("MatMul", ["flat", "last"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def _weight(name: str, values: Any) -> Any:
    return numpy_helper.from_array(values.astype(np.float32), name)


def wrong(source: Path, target: Path, rows: Any, arguments: Mapping[str, int]) -> None:
    """Write another model."""
    classifier(target, seed=1)


def same(source: Path, target: Path, rows: Any, arguments: Mapping[str, int]) -> None:
    """Write the same model."""
    assert rows and all(each["x"].shape == (1, 3, 8, 8) for each in rows)
    target.write_bytes(source.read_bytes())


def hangs(source: Path, target: Path, rows: Any, arguments: Mapping[str, int]) -> None:
    """Never end."""
    while True:
        time.sleep(1)


def greedy(source: Path, target: Path, rows: Any, arguments: Mapping[str, int]) -> None:
    """Take 20 GiB."""
    held = [bytearray(64 << 20) for _ in range(320)]
    target.write_bytes(bytes(len(held)))


def crashes(source: Path, target: Path, rows: Any, arguments: Mapping[str, int]) -> None:
    """End by a signal, as a library may."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)
