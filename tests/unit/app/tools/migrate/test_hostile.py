"""Sources made by somebody who means harm: names, paths, links, types and sizes, over every old server."""

import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.commands import migrate
from tests.unit.app.tools.migrate.sources import FLOAT, archive, saved_model

Capture = pytest.CaptureFixture[str]
Source = Callable[[Path, Any], list[str]]

NAMES = [
    "../escaped", "../../escaped", "./../../escaped", "a/../../escaped", "a/b", "a/", "/", "/etc/cron.d/x",
    "{outside}/kept", "..", ".", "", " ", "...", ".hidden", ".kept.migrating", "../outside/.kept", "~",
    "~root", "-rf", "--to=/etc", "a b", "a\nb", "a\r\nE1119 x", "a\0b", "\x1b[2J", "a\x9b2Jb",
    "\u202egpj.exe", "\u2028", "a;reboot", "$(reboot)", "`reboot`", "a|b", "a\\b", "..\\..\\escaped", "C:\\x",
    "a:b", "a*", "a'b", 'a"b', "<b>", "x" * 201, "é" * 101, "\ud83d", "a\udcff",
]  # fmt: skip
"""Names that no model gets."""
ODD: list[Any] = [None, True, 3, -1.5, [], ["a"], {}, {"a": 1}, "x" * 1000, [[[[[["deep"]]]]]]]
"""Values of the wrong type in the place of a name."""


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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for kept in ("outside/kept", "outside/.kept.migrating", "to/.kept.migrating", "to/other"):
        (tmp_path / kept).mkdir(parents=True)
        (tmp_path / kept / "file").write_text("kept")
    return tmp_path / "source"


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


@pytest.mark.parametrize("make", SOURCES)
def test_a_good_name_is_written(make: Source, source: Path) -> None:
    arguments = make(source, GOOD.get(make, "good-1.0"))
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    assert (source.parent / "to" / GOOD.get(make, "good-1.0") / "config.pbtxt").is_file()


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_hostile_name_writes_and_removes_nothing(
    make: Source, name: str, source: Path, capsys: Capture
) -> None:
    refused(make(source, name.format(outside=source.parent / "outside")), source.parent, capsys)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_a_name_of_another_type_is_refused(make: Source, name: Any, source: Path, capsys: Capture) -> None:
    arguments = make(source, name)
    named = make is mlserver and name is None  # it has the name of its directory then
    text = make in (kserve, seldon, seldon_model) and name in (True, 3)  # YAML's 3 is a text here
    if named or text:
        assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    else:
        refused(arguments, source.parent, capsys)


PATHS = [
    "../../../escaped", "/etc/escaped", "a/../../../../escaped", "..\\..\\escaped", "~/escaped", "C:/x",
    "a\nb", "a/" * 40 + "b", "x" * 256, "handler.py/x", "../model.py",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_paths_of_an_archive_stay_in_it(path: str, source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar", {path: "x"})
    refused(["torchserve", str(made)], source.parent, capsys)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_an_archive_has_twice_is_refused(source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar")
    with zipfile.ZipFile(made, "a") as packed:
        packed.writestr("./handler.py", "x")
    assert "two of its files would be" in refused(["torchserve", str(made)], source.parent, capsys)


@pytest.mark.parametrize("flag", [1, 8], ids=["encrypted", "damaged"])
def test_what_cannot_be_unpacked_leaves_nothing(flag: int, source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar", {"weights.bin": "x" * 1000})
    content = bytearray(made.read_bytes())
    if flag == 1:  # the last file says that it is encrypted
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.rindex(mark) + offset] |= flag
    else:
        start = content.index(b"x" * 1000)
        content[start : start + 10] = b"y" * 10
    made.write_bytes(content)
    refused(["torchserve", str(made)], source.parent, capsys)


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


def test_a_directory_that_cannot_be_read_is_one_refusal(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """As lost+found of a volume."""
    saved_model(source / "half" / "1", serving_default={"x": (FLOAT, [-1, 2])})
    (source / "lost").mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "lost":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert migrate.main(["tfserving", str(source), "--to", str(source.parent / "to")]) == 1
    out = capsys.readouterr().out
    assert (
        "half: 3 files" in out
        and f"lost: not written: {source}/lost cannot be read: Permission denied" in out
    )


def test_links_inside_of_a_model_are_followed(source: Path) -> None:
    """As Kubernetes mounts files."""
    arguments = mlserver(source, "m")
    (source / "model.joblib").rename(source / "..data")
    (source / "model.joblib").symlink_to("..data")
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    assert not (source.parent / "to" / "m" / "1" / "model.joblib").is_symlink()


@pytest.mark.parametrize(
    "file", ["model-settings.json", "a.mar", "models.config", "m.yaml", "bento.yaml", "service.json"]
)
def test_what_is_no_file_is_not_waited_for(file: str, source: Path, capsys: Capture) -> None:
    kinds = ["mlserver", "torchserve", "tfserving", "kserve", "bentoml", "eas"]
    files = ["model-settings.json", "a.mar", "models.config", "m.yaml", "bento.yaml", "service.json"]
    os.mkfifo(source / file)
    kind = dict(zip(files, kinds, strict=True))[file]
    for place in (source, source / file):
        refused([kind, str(place)], source.parent, capsys)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name}\n  <<: [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DOCUMENTS = [
    BOMB + "kind: InferenceService\nmetadata: *i\nspec: *i\n",
    BOMB + "kind: Model\nmetadata: {name: *i}\nspec: {storageUri: x, requirements: *i}\n",
    MERGES + "kind: InferenceService\nmetadata: *i\nspec: *i\n",
    "kind: &a [*a]\n", "a: &a [*a]\nkind: Model\nmetadata: *a\nspec: *a\n", "[" * 100_000, "{a: " * 100_000,
    "- " * 100_000 + "a", "kind: Model\nmetadata: {name: m}\nspec: [1]\n", "1:" * 400_000 + "1",
    "9" * 3_000_000, "\x00", "\t- a", "a: b: c", "? [a]\n: b\n", "!!python/object/apply:os.system [id]",
    "%YAML 9.9\n---\na", "--- \n" * 300_000, "x" * (5 << 20), "kind: List\nitems: {a: 1}\n",
    "kind: List\nitems: 3\n", "kind: Model\n", "a: *unknown\n",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["kserve", "seldon", "bentoml"])
@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_yaml_is_bounded(kind: str, text: str, source: Path, capsys: Capture) -> None:
    (source / "m.yaml").write_text(text)
    refused([kind, str(source / "m.yaml"), "--storage", str(source)], source.parent, capsys)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"\xff", b'"\\ud800"', b"null", b"", b"[]"],
)
@pytest.mark.parametrize("kind", ["mlserver", "eas"])
def test_json_is_bounded(kind: str, content: bytes, source: Path, capsys: Capture) -> None:
    (source / "model-settings.json").write_bytes(content)
    place = source if kind == "mlserver" else source / "model-settings.json"
    refused([kind, str(place)], source.parent, capsys)


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel_workers": 10**18}, {"max_batch_size": "x"}, {"max_batch_size": -1},
        {"max_batch_size": 8, "max_batch_time": 1e300}, {"parameters": [1]}, {"parameters": {"uri": 3}},
        {"inputs": {"a": 1}}, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 70]}]},
        {"inputs": [{"name": "x", "datatype": "no", "shape": [1]}]}, {"outputs": [{"name": 1}]},
        {"parameters": {"extra": {"predict_fn": "__class__"}}},
        {"parameters": {"extra": {"predict_fn": [1]}}},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_wrong_types_and_sizes_are_refused(
    settings: dict[str, Any], source: Path, capsys: Capture
) -> None:
    arguments = mlserver(source, "m")
    document = json.loads((source / "model-settings.json").read_text())
    (source / "model-settings.json").write_text(json.dumps({**document, **settings}))
    refused(arguments, source.parent, capsys)


def test_one_bad_model_does_not_stop_the_others(source: Path, capsys: Capture) -> None:
    for name in ("a", "b", "c"):
        archive(source / f"{name}.mar", modelName=name)
    (source / "b.mar").write_bytes(b"PK")
    (source / "again.mar").write_bytes((source / "a.mar").read_bytes())
    assert migrate.main(["torchserve", str(source), "--to", str(source.parent / "to")]) == 1
    out = capsys.readouterr().out
    assert sorted(os.listdir(source.parent / "to")) == [".kept.migrating", "a", "c", "other"]
    assert f"b: not written: {source}/b.mar is no model archive" in out
    assert "a: not written: another model of this source has this name" in out


def test_notes_of_strangers_are_short_and_printable(source: Path, capsys: Capture) -> None:
    arguments = mlserver(source, "m")
    document = json.loads((source / "model-settings.json").read_text())
    more = {f"\x1b[2J\n{number}{'x' * 1000}": 1 for number in range(1000)}
    (source / "model-settings.json").write_text(json.dumps({**document, **more}))
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60 and all(line.isprintable() and len(line) < 600 for line in lines)
