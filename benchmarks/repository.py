"""The repositories of a run: three example models, and the same three as Triton's Python backend runs them.

The tritonserver wheel has no ONNX Runtime backend, so `simple` and the CNN are Python models there. All else
in the configurations is equal. Dynamic batching is on for every model, so that mean batch sizes compare.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from google.protobuf import text_format

from benchmarks.workloads import EFFICIENTNET, IDENTITY, read_config

MODELS = (IDENTITY, "simple", EFFICIENTNET)
PEER_MODELS = Path(__file__).parent / "peer_models"
PYTHON_PEERS = {"simple": "simple.py", EFFICIENTNET: "onnx_model.py"}


def bench_repository(examples: Path, target: Path) -> Path:
    """Copy version 1 of each benchmark model that has been built."""
    for model in MODELS:
        if any((examples / model / "1").glob("model.*")):
            copy_model(examples, target, model)
    return target


def copy_model(examples: Path, target: Path, model: str) -> None:
    keep_first = shutil.ignore_patterns("[2-9]*", "__pycache__")
    shutil.copytree(examples / model, target / model, ignore=keep_first)
    config = read_config(examples, model)
    config.dynamic_batching.SetInParent()
    (target / model / "config.pbtxt").write_text(text_format.MessageToString(config))


def cpp_repository(bench: Path, target: Path, backends: Path) -> Path:
    """Copy the models whose C++ backend is in a directory; that of `identity` is Triton's example."""
    target.mkdir()
    for model in bench.iterdir():
        config = read_config(bench, model.name)
        config.backend = "identity" if model.name == IDENTITY else "onnxruntime"
        config.platform = ""
        if (backends / config.backend / f"libtriton_{config.backend}.so").exists():
            shutil.copytree(model, target / model.name)
            (target / model.name / "config.pbtxt").write_text(text_format.MessageToString(config))
    return target


def triton_repository(bench: Path, target: Path) -> Path:
    """Copy the same models, those that need an absent backend as Python models."""
    shutil.copytree(bench, target)
    for model, source in PYTHON_PEERS.items():
        if (target / model).exists():
            config = read_config(target, model)
            config.platform, config.default_model_filename, config.backend = "", "", "python"
            (target / model / "config.pbtxt").write_text(text_format.MessageToString(config))
            shutil.copy(PEER_MODELS / source, target / model / "1" / "model.py")
    return target
