"""Repositories of small Python models."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent

HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
FP32 = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
DOUBLE = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) * 2)]) for r in requests]"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def source(execute: str, initialize: str = "pass", head: str = "") -> str:
    """Return the text of a model.py whose `execute` is this block."""
    return "\n".join(
        [
            HEAD + dedent(head),
            "def _in(request):",
            "    return pb_utils.get_input_tensor_by_name(request, 'IN').as_numpy()",
            "class TritonPythonModel:",
            "    def initialize(self, args):",
            indent(dedent(initialize), " " * 8),
            "    def execute(self, requests):",
            indent(dedent(execute), " " * 8),
        ]
    )


def add_model(
    repository: Path,
    name: str,
    execute: str = DOUBLE,
    *,
    config: str = FP32,
    versions: Mapping[int, str] | None = None,
    files: Mapping[str, str] | None = None,
    **parts: str,
) -> Path:
    """Write a Python model; `versions` are the sources of several, `files` others of its directory."""
    folder = repository / name
    for version, text in (versions or {1: source(execute, **parts)}).items():
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
        (folder / str(version) / "model.py").write_text(text)
    for path, text in (files or {}).items():
        (folder / path).write_text(text)
    (folder / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}')
    return folder


def add_ensemble(repository: Path, name: str, *models: str) -> None:
    """Write an ensemble that calls models one after the other."""
    (repository / name / "1").mkdir(parents=True)
    tensors = ["IN", *(f"t{number}" for number in range(1, len(models))), "OUT"]
    steps = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{before}" }} '
        f'output_map {{ key: "OUT" value: "{after}" }} }}'
        for model, before, after in zip(models, tensors, tensors[1:], strict=False)
    ]
    text = f'platform: "ensemble"\n{FP32}ensemble_scheduling {{ step [ {", ".join(steps)} ] }}\n'
    (repository / name / "config.pbtxt").write_text(text)
