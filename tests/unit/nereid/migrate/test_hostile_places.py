"""Places that documents of strangers name: paths and links, over every old server."""

import json
from pathlib import Path
from typing import Any

import pytest

from nereid.commands import migrate
from tests.unit.nereid.migrate.hostile import (
    GOOD,
    Capture,
    Source,
    bentoml,
    eas,
    kserve,
    mlserver,
    refused,
    seldon,
    seldon_model,
    tfserving,
)
from tests.unit.nereid.migrate.sources import archive

URIS = [
    "/etc/passwd",
    "file:///etc/passwd",
    "../../outside/kept/file",
    "{outside}/kept/file",
    "..",
    "a\0b",
    "\ud800",
]


@pytest.mark.parametrize("uri", URIS, ids=range(len(URIS)))
def test_mlserver_reads_nothing_outside_of_its_source(uri: str, source: Path, capsys: Capture) -> None:
    arguments = mlserver(source, "m")
    settings = json.loads((source / "model-settings.json").read_text())
    settings["parameters"] = {"uri": uri.format(outside=source.parent / "outside")}
    (source / "model-settings.json").write_text(json.dumps(settings))
    refused(arguments, source.parent, capsys)


@pytest.mark.parametrize(
    "target", ["../outside/kept/file", "{outside}/kept/file", "model.joblib", "/dev/zero"]
)
def test_links_out_of_a_model_are_refused(target: str, source: Path, capsys: Capture) -> None:
    arguments = mlserver(source, "m")
    (source / "model.joblib").unlink()
    (source / "model.joblib").symlink_to(target.format(outside=source.parent / "outside"))
    refused(arguments, source.parent, capsys)


LINKED: dict[Source, str] = {
    tfserving: "half/1/saved_model.pb",
    kserve: "storage/model.joblib",
    seldon: "storage/model.joblib",
    seldon_model: "storage/model.joblib",
    bentoml: "models/m/1/saved_model.pkl",
}


@pytest.mark.parametrize(("make", "more"), [*((make, False) for make in LINKED), (tfserving, True)])
def test_links_out_of_any_source_are_refused(make: Source, more: bool, source: Path, capsys: Capture) -> None:
    arguments = make(source, GOOD.get(make, "m"))
    file = source / LINKED[make]
    moved = source.parent / "outside" / "moved"
    file.rename(moved)
    if more:  # a file beside it, where those are taken along
        file.write_bytes(moved.read_bytes())
        file = file.parent / "assets" / "vocabulary"
        file.parent.mkdir()
    file.symlink_to(moved)
    assert "link" in refused(arguments, source.parent, capsys)


def test_links_out_of_a_repository_of_triton_are_refused(source: Path, capsys: Capture) -> None:
    (source / "models" / "m" / "1").mkdir(parents=True)
    (source / "models" / "m" / "1" / "model.onnx").symlink_to(source.parent / "outside" / "kept" / "file")
    service = {"name": "s", "processor": "triton", "model_path": f"file://{source}/models"}
    (source / "service.json").write_text(json.dumps(service))
    assert "is a link that leads out" in refused(["eas", str(source / "service.json")], source.parent, capsys)


def test_a_model_of_triton_that_is_a_link_out_of_its_repository_is_refused(
    source: Path, capsys: Capture
) -> None:
    (source.parent / "outside" / "m" / "1").mkdir(parents=True)
    (source.parent / "outside" / "m" / "1" / "model.onnx").write_text("x")
    (source / "models").mkdir()
    (source / "models" / "m").symlink_to(source.parent / "outside" / "m")
    service = {"name": "s", "processor": "triton", "model_path": f"file://{source}/models"}
    (source / "service.json").write_text(json.dumps(service))
    assert "leads out of" in refused(["eas", str(source / "service.json")], source.parent, capsys)


def serialized(directory: Path, path: str) -> list[str]:
    return ["torchserve", str(archive(directory / "a.mar", serializedFile=path))]


def registered(directory: Path, path: str) -> list[str]:
    """A config.properties names an archive, and where its store is."""
    archive(directory / "model_store" / "a.mar")
    models = json.dumps({"m": {"1.0": {"marName": path, "batchSize": 2}}})
    properties = f"model_store={path}\nmodels={models}\n"
    (directory / "config.properties").write_text(properties, errors="surrogatepass")
    return ["torchserve", str(directory / "config.properties")]


def at_storage(make: Source, field: str) -> Source:
    """A resource whose model is at a file:// of this machine."""

    def made(directory: Path, path: str) -> list[str]:
        kind, manifest, *_ = make(directory, "m")
        document = json.loads(Path(manifest).read_text())
        Path(manifest).write_text(json.dumps(_replaced(document, field, f"file://{path}")))
        return [kind, manifest]

    return made


def _replaced(document: Any, field: str, value: str) -> Any:
    if isinstance(document, dict):
        return {
            key: value if key == field else _replaced(each, field, value) for key, each in document.items()
        }
    return [_replaced(each, field, value) for each in document] if isinstance(document, list) else document


def based(directory: Path, path: str) -> list[str]:
    tfserving(directory, "m")
    escaped = json.dumps(path).replace("\\u0000", "\\000")
    (directory / "models.config").write_text(
        f"model_config_list {{ config {{ name: 'm' base_path: {escaped} }} }}"
    )
    return ["tfserving", str(directory / "models.config")]


def of_version(directory: Path, path: str) -> list[str]:
    bentoml(directory, "m")
    (directory / "bento.yaml").write_text(json.dumps({"models": [{"tag": f"m:{path}"}]}))
    return ["bentoml", str(directory)]


def latest(directory: Path, path: str) -> list[str]:
    of_version(directory, "latest")
    (directory / "models" / "m" / "latest").write_text(path, errors="surrogatepass")
    return ["bentoml", str(directory)]


def entry(directory: Path, path: str) -> list[str]:
    eas(directory, "m")
    service = {
        "name": "m",
        "processor": "pytorch_cpu",
        "model_path": f"file://{directory}",
        "model_entry": path,
    }
    (directory / "service.json").write_text(json.dumps(service))
    return ["eas", str(directory / "service.json")]


PLACES: dict[str, Source] = {
    "tfserving": based,
    "torchserve": serialized,
    "torchserve, config.properties": registered,
    "kserve": at_storage(kserve, "storageUri"),
    "seldon": at_storage(seldon, "modelUri"),
    "seldon, Core 2": at_storage(seldon_model, "storageUri"),
    "bentoml": of_version,
    "bentoml, latest": latest,
    "eas": at_storage(eas, "model_path"),
    "eas, entry": entry,
}  # fmt: skip
"""Where documents name places; MLServer's `uri` has a table of its own."""
STRANGE = [
    "../outside/kept", "../../outside/kept/file", "{outside}/kept", "{outside}/kept/file", "/etc/passwd", "/",
    "..", "/dev/zero", "/proc/self/mem", "~/x", "a\nb", "a\0b", "\ud800", "a/" * 5000, "x" * 300,
    "C:\\x", "\x1b[2J", "-rf",
]  # fmt: skip


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("path", STRANGE, ids=range(len(STRANGE)))
def test_a_strange_place_writes_and_removes_nothing(
    kind: str, path: str, source: Path, capsys: Capture
) -> None:
    refused(PLACES[kind](source, path.format(outside=source.parent / "outside")), source.parent, capsys)


def test_links_inside_of_a_model_are_followed(source: Path) -> None:
    """As Kubernetes mounts files."""
    arguments = mlserver(source, "m")
    (source / "model.joblib").rename(source / "..data")
    (source / "model.joblib").symlink_to("..data")
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    assert not (source.parent / "to" / "m" / "1" / "model.joblib").is_symlink()
