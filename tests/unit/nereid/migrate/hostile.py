"""Sources of every old server with a name in them, and what a refusal leaves as it was."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nereid.commands import migrate
from tests.unit.nereid.migrate.sources import FLOAT, archive, saved_model

Capture = pytest.CaptureFixture[str]
Source = Callable[[Path, Any], list[str]]


def tfserving(directory: Path, name: Any) -> list[str]:
    saved_model(directory / "half" / "1", serving_default={"x": (FLOAT, [-1, 2])})
    text = json.dumps(name, ensure_ascii=True) if isinstance(name, str) else str(name)
    escaped = text.replace("\\u0000", "\\000").replace("\\u001b", "\\033")
    config = f"model_config_list {{ config {{ name: {escaped} base_path: '{directory}/half' }} }}"
    (directory / "models.config").write_text(config)
    return ["tfserving", str(directory / "models.config")]


def torchserve(directory: Path, name: Any) -> list[str]:
    return ["torchserve", str(archive(directory / "a.mar", modelName=name))]


def mlserver(directory: Path, name: Any) -> list[str]:
    settings = {"name": name, "implementation": "mlserver_sklearn.SKLearnModel"}
    (directory / "model.joblib").write_bytes(b"\x80\x04not unpickled")
    (directory / "model-settings.json").write_text(json.dumps(settings))
    return ["mlserver", str(directory)]


def stored(kind: str, directory: Path, manifest: Any) -> list[str]:
    (directory / "storage").mkdir()
    (directory / "storage" / "model.joblib").write_bytes(b"\x80\x04not unpickled")
    (directory / "m.yaml").write_text(json.dumps(manifest))
    return [kind, str(directory / "m.yaml"), "--storage", str(directory / "storage")]


def kserve(directory: Path, name: Any) -> list[str]:
    spec = {"predictor": {"sklearn": {"storageUri": "s3://bucket/m"}}}
    manifest = {"kind": "InferenceService", "metadata": {"name": name}, "spec": spec}
    return stored("kserve", directory, manifest)


def seldon(directory: Path, name: Any) -> list[str]:
    graph = {"name": name, "implementation": "SKLEARN_SERVER", "modelUri": "s3://bucket/m"}
    spec = {"predictors": [{"graph": graph}]}
    manifest = {"kind": "SeldonDeployment", "metadata": {"name": "d"}, "spec": spec}
    return stored("seldon", directory, manifest)


def seldon_model(directory: Path, name: Any) -> list[str]:
    spec = {"storageUri": "gs://bucket/m", "requirements": ["sklearn"]}
    return stored("seldon", directory, {"kind": "Model", "metadata": {"name": name}, "spec": spec})


def bentoml(directory: Path, name: Any) -> list[str]:
    tag = f"{name}:1" if isinstance(name, str) else name
    (directory / "bento.yaml").write_text(json.dumps({"models": [{"tag": tag}]}))
    model = directory / "models" / "m" / "1"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text("module: bentoml.sklearn")
    (model / "saved_model.pkl").write_bytes(b"\x80\x04not unpickled")
    return ["bentoml", str(directory)]


def eas(directory: Path, name: Any) -> list[str]:
    (directory / "m.pt").write_bytes(b"PK")
    service = {"name": name, "processor": "pytorch_cpu_1.10", "model_path": f"file://{directory}/m.pt"}
    (directory / "service.json").write_text(json.dumps(service))
    return ["eas", str(directory / "service.json")]


SOURCES: list[Source] = [tfserving, torchserve, mlserver, kserve, seldon, seldon_model, bentoml, eas]
GOOD: dict[Source, str] = {bentoml: "m"}


def everything(directory: Path) -> dict[str, Any]:
    """Return what lies below a directory, except a source."""
    return {
        path: "" if os.path.isdir(path) else Path(path).read_bytes()
        for parent, _, files in os.walk(directory)
        if "/source" not in parent
        for path in (parent, *(os.path.join(parent, file) for file in files))
        if path != str(directory)
    }


def refused(arguments: list[str], root: Path, capture: Capture) -> str:
    """Migrate, and return what was said; nothing has changed."""
    before, begun = everything(root), time.thread_time()
    status = migrate.main([*arguments, "--to", str(root / "to")])
    output = capture.readouterr()
    said = output.out + output.err
    assert status in (1, 2), said
    assert everything(root) == before
    assert time.thread_time() - begun < 5, "and soon"
    lines = said.splitlines()
    assert len(lines) - sum(line.startswith("  note: ") for line in lines) == 1, said
    assert all(line.isprintable() for line in lines) and "Traceback" not in said and len(lines[0]) < 2000
    return said
