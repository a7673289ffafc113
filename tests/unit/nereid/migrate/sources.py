"""Small models of other servers, as their files."""

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.protocol.tfserving.messages import message_class
from nereid.migrate.plan import Found, MigratedModel, Refused

FLOAT, STRING = 1, 7
HANDLER = """
import json


class Doubler:
    def initialize(self, context):
        with open(context.system_properties["model_dir"] + "/factor.json") as file:
            self.factor = json.load(file)

    def handle(self, data, context):
        bodies = [row.get("body", row.get("data")) for row in data]
        for index in range(len(bodies)):
            context.set_response_content_type(index, "application/json")
        return [self.answer(body) for body in bodies]

    def answer(self, body):
        return [self.factor * each for each in body] if isinstance(body, list) else repr(body)
"""
MANIFEST = {
    "modelName": "doubler",
    "handler": "handler.py",
    "modelVersion": "2.0",
    "serializedFile": "factor.json",
}


def migrated(found: Iterable[Found]) -> list[MigratedModel]:
    """Return models of which none is refused."""
    models = list(found)
    assert [each for each in models if isinstance(each, Refused)] == []
    return [each for each in models if isinstance(each, MigratedModel)]


def refusal(found: Iterable[Found]) -> str:
    """Return why one model is refused."""
    (reason,) = [each.reason for each in found if isinstance(each, Refused)]
    return reason


def saved_model(directory: Path, **signatures: Mapping[str, tuple[int, list[int]]]) -> Path:
    """Write a SavedModel without a graph; a signature maps inputs to types and shapes, `y` is its output."""
    message = message_class("SavedModel")()
    graph = message.meta_graphs.add()
    for name, inputs in signatures.items():
        definition = graph.signature_def[name]
        for infos, tensors in ((definition.inputs, inputs), (definition.outputs, {"y": (FLOAT, [-1, 2])})):
            for tensor, (dtype, shape) in tensors.items():
                infos[tensor].dtype = dtype
                for size in shape:
                    infos[tensor].tensor_shape.dim.add(size=size)
    (directory / "variables").mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(message.SerializeToString())
    (directory / "variables" / "variables.index").write_bytes(b"index")
    return directory


def archive(path: Path, files: Mapping[str, str] | None = None, **manifest: Any) -> Path:
    """Write a model archive whose handler multiplies lists by two."""
    described = {**MANIFEST, **manifest}
    content = {
        "handler.py": HANDLER,
        "factor.json": "2",
        "MAR-INF/MANIFEST.json": json.dumps({"model": described}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in {**content, **(files or {})}.items():
            packed.writestr(name, text)
    return path
