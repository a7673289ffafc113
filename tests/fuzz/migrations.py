"""A target of `nereid migrate`: archives and documents of strangers, and the repository made of them."""

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from app.protocol.tfserving.messages import message_class
from nereid.migrate import bentoml, eas, kserve, mlserver, seldon, tfserving, torchserve
from nereid.migrate.plan import Found, MigrationError, Refused, planned
from nereid.migrate.writing import write
from tests.fuzz.target import LIMIT, Target, cut

_FAULTS = (
    "TypeError",
    "AttributeError",
    "KeyError",
    "IndexError",
    "NameError",
    "AssertionError",
    "MemoryError",
)
"""What a refusal is not for: `attempt` makes a refusal of any exception."""
_MANIFEST = "MAR-INF/MANIFEST.json"


class _Kind(NamedTuple):
    """A server: the file that a document is written to, what reads it, and the source below its directory."""

    file: str
    read: Callable[[Path], Iterator[Found]]
    source: str = ""


def archived(manifest: bytes, settings: bytes) -> bytes:
    """Return an archive of TorchServe."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ((_MANIFEST, manifest), ("m.yaml", settings), ("h.py", b""), ("w", b"1")):
            archive.writestr(name, content)
    return packed.getvalue()


def _document(data: bytes) -> bytes:
    """Return what is in a file; an archive is two bytes with a length, so long a manifest, and settings."""
    if data[:1] != b"t":
        return data[1:]
    length, rest = cut(data[1:])
    return archived(rest[:length], rest[length:])


@cache
def _kinds() -> dict[bytes, _Kind]:
    storage = _place() / "source"
    return {
        b"z": _Kind("a.mar", torchserve.models, "a.mar"),
        b"t": _Kind("a.mar", torchserve.models, "a.mar"),
        b"p": _Kind("config.properties", torchserve.models, "config.properties"),
        b"f": _Kind("models.config", tfserving.models, "models.config"),
        b"g": _Kind("s/1/saved_model.pb", tfserving.models),
        b"m": _Kind("model-settings.json", mlserver.models),
        b"k": _Kind("s.yaml", lambda source: kserve.models(source, storage), "s.yaml"),
        b"s": _Kind("s.yaml", lambda source: seldon.models(source, storage), "s.yaml"),
        b"b": _Kind("bento.yaml", lambda source: bentoml.models(source, storage)),
        b"e": _Kind("s.json", lambda source: eas.models(source, storage), "s.json"),
    }


@cache
def _place() -> Path:
    place = tempfile.TemporaryDirectory()
    _kept.append(place)
    return Path(place.name).resolve()


_kept: list[tempfile.TemporaryDirectory[str]] = []


def migrated(data: bytes) -> None:
    """A byte that chooses the server, then a document of it."""
    kind = _kinds().get(data[:1])
    if kind is None:
        return
    place = _place()
    source, repository = place / "source", place / "repository"
    try:
        file = source / kind.file
        file.parent.mkdir(parents=True)
        file.write_bytes(_document(data))
        (source / "model.pkl").write_bytes(b"1")
        _write(planned(kind.read(source / kind.source), repository), source, repository)
    finally:
        assert set(os.listdir(place)) <= {"source", "repository"}
        shutil.rmtree(source)
        shutil.rmtree(repository, ignore_errors=True)


def _write(models: list[Found], source: Path, repository: Path) -> None:
    names = {each.config.name for each in models if not isinstance(each, Refused)}
    for each in models:
        if isinstance(each, Refused):
            assert not any(f"cannot be read: {fault}" in each.reason for fault in _FAULTS), each.reason
            continue
        for item in each.items:
            assert item.source is None or item.source.resolve().is_relative_to(source), item
        if sum(len(item.content) for item in each.items) <= LIMIT and not any(i.member for i in each.items):
            write(each, repository)
    assert not repository.exists() or set(os.listdir(repository)) <= names


def _manifested(model: object, settings: bytes) -> bytes:
    manifest = json.dumps({"model": model}).encode()
    return len(manifest).to_bytes(2, "little") + manifest + settings


def _graph() -> bytes:
    message = message_class("SavedModel")()
    definition = message.meta_graphs.add().signature_def["serving_default"]
    definition.inputs["x"].dtype = definition.outputs["y"].dtype = 1
    definition.inputs["x"].tensor_shape.dim.add(size=-1)
    return bytes(message.SerializeToString())


_DESCRIBED = {"modelName": "m", "handler": "h.py", "modelVersion": "2.0", "configFile": "m.yaml"}
_SERVICE = {
    "kind": "InferenceService",
    "metadata": {"name": "m"},
    "spec": {"predictor": {"model": {"modelFormat": {"name": "sklearn"}, "storageUri": "s3://b/m"}}},
}
_DEPLOYMENT = {
    "kind": "SeldonDeployment",
    "metadata": {"name": "m"},
    "spec": {
        "predictors": [{"graph": {"name": "c", "implementation": "SKLEARN_SERVER", "modelUri": "s3://b"}}]
    },
}
_SETTINGS = {
    "name": "m",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.pkl"},
}
_EAS = {"name": "m", "processor": "tensorflow_cpu", "model_path": "oss://b/m", "metadata": {"instance": 1}}

MIGRATIONS: dict[str, Target] = {
    "migrated": Target(
        migrated,
        (MigrationError, OSError),
        (
            b"z" + archived(json.dumps({"model": _DESCRIBED}).encode(), b"batchSize: 4\nminWorkers: 2\n"),
            b"t" + _manifested({**_DESCRIBED, "serializedFile": "w"}, b"a: &a [1, 2]\nb: [*a, *a]\n"),
            b'pmodel_store=.\nmodels={"m": {"1.0": {"marName": "a.mar", "batchSize": 4}}}\n',
            b'fmodel_config_list { config { name: "m" base_path: "/none" model_platform: "tensorflow" } }',
            b"g" + _graph(),
            b"m" + json.dumps(_SETTINGS).encode(),
            b"k" + json.dumps(_SERVICE).encode(),
            b"s" + json.dumps(_DEPLOYMENT).encode(),
            b"bname: m\nversion: a\nmodels:\n- tag: m:1\n  module: bentoml.sklearn\n",
            b"e" + json.dumps(_EAS).encode(),
        ),
        times=5,  # files are written, and YAML is read twice
    )
}
