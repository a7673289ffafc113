"""The repositories of a run: example models, and the same as Triton's Python and C++ backends run them.

The tritonserver wheel has no ONNX Runtime backend, so `simple` and the CNN are Python models there. All else
in the configurations is equal. Dynamic batching is on for the models of requests that are alike, so that mean
batch sizes compare.
"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.workloads import EFFICIENTNET, IDENTITY, read_config

MODELS = (IDENTITY, "simple", EFFICIENTNET)
STRINGS, STREAM = "simple_identity", "repeat_int32"
STRINGS_ONNX, TWO_STEPS = "strings_onnx", "two_steps"
OF_PYTHON = (STRINGS, STREAM)
PEER_MODELS = Path(__file__).parent / "peer_models"
PYTHON_PEERS = {"simple": "simple.py", EFFICIENTNET: "onnx_model.py"}


def bench_repository(examples: Path, target: Path) -> Path:
    """Copy version 1 of each benchmark model that has been built."""
    for model in MODELS:
        if any((examples / model / "1").glob("model.*")):
            copy_model(examples, target, model)
    return target


def differing_repository(examples: Path, target: Path) -> Path:
    """Add the models of requests that differ."""
    for model in OF_PYTHON:
        shutil.copytree(examples / model, target / model, ignore=shutil.ignore_patterns("__pycache__"))
    if (target / "simple").exists():
        write_config(target / TWO_STEPS, ensemble_config())
        write_config(target / STRINGS_ONNX, strings_config())
        (target / STRINGS_ONNX / "1" / "model.onnx").write_bytes(strings_model())
    return target


def write_config(model: Path, config: Any) -> None:
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(text_format.MessageToString(config))


def ensemble_config() -> Any:
    """Return the ensemble that adds and subtracts, and does so again with the results."""
    config = tensors_config(TWO_STEPS, "TYPE_INT32", 16, 2)
    config.platform = "ensemble"
    names = (("INPUT0", "INPUT1"), ("sum", "difference"), ("OUTPUT0", "OUTPUT1"))
    for given, made in pairwise(names):
        step = config.ensemble_scheduling.step.add(model_name="simple", model_version=-1)
        step.input_map.update(zip(("INPUT0", "INPUT1"), given, strict=True))
        step.output_map.update(zip(("OUTPUT0", "OUTPUT1"), made, strict=True))
    return config


def strings_config() -> Any:
    config = tensors_config(STRINGS_ONNX, "TYPE_STRING", -1, 1)
    config.platform = "onnxruntime_onnx"
    return config


def tensors_config(name: str, kind: str, dims: int, count: int) -> Any:
    """Return a configuration with so many inputs and outputs."""
    config = model_config_pb2.ModelConfig(name=name, max_batch_size=8)
    for i in range(count):
        config.input.add(name=f"INPUT{i}", data_type=kind, dims=[dims])
        config.output.add(name=f"OUTPUT{i}", data_type=kind, dims=[dims])
    return config


def strings_model() -> bytes:
    """Return an ONNX model whose output is its input."""
    from onnx import TensorProto, helper

    given, made = (
        helper.make_tensor_value_info(name, TensorProto.STRING, ["batch", "count"])
        for name in ("INPUT0", "OUTPUT0")
    )
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "m", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def copy_model(examples: Path, target: Path, model: str) -> None:
    keep_first = shutil.ignore_patterns("[2-9]*", "__pycache__")
    shutil.copytree(examples / model, target / model, ignore=keep_first)
    config = read_config(examples, model)
    config.dynamic_batching.SetInParent()
    (target / model / "config.pbtxt").write_text(text_format.MessageToString(config))


def cpp_repository(bench: Path, target: Path, backends: Path) -> Path:
    """Copy the models whose C++ backend is in a directory; that of `identity` is Triton's example.

    Ensembles need none, and models that are to be compared as Python models are.
    """
    target.mkdir()
    for model in bench.iterdir():
        config = read_config(bench, model.name)
        if model.name not in OF_PYTHON and config.platform != "ensemble":
            config.backend = "identity" if model.name == IDENTITY else "onnxruntime"
            config.platform = ""
            if not (backends / config.backend / f"libtriton_{config.backend}.so").exists():
                continue
        shutil.copytree(model, target / model.name)
        (target / model.name / "config.pbtxt").write_text(text_format.MessageToString(config))
    if not (target / "simple").exists():
        shutil.rmtree(target / TWO_STEPS, ignore_errors=True)
    return target


def cpp_backends(given: Path, python: Path, target: Path) -> Path:
    """Make a directory of C++ backends with the Python backend beside them."""
    target.mkdir()
    for backend in (*given.iterdir(), python / "python"):
        if not (target / backend.name).exists():
            (target / backend.name).symlink_to(backend.resolve())
    return target


def triton_repository(bench: Path, target: Path) -> Path:
    """Copy the same models, those that need an absent backend as Python models."""
    shutil.copytree(bench, target, ignore=shutil.ignore_patterns(STRINGS_ONNX))
    for model, source in PYTHON_PEERS.items():
        if (target / model).exists():
            config = read_config(target, model)
            config.platform, config.default_model_filename, config.backend = "", "", "python"
            (target / model / "config.pbtxt").write_text(text_format.MessageToString(config))
            shutil.copy(PEER_MODELS / source, target / model / "1" / "model.py")
    return target
