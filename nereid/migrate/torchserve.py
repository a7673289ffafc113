"""TorchServe: a model archive (.mar), a store of them, or a `config.properties`."""

import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.protocol.torchserve import ANSWER, ANSWER_TYPE, NAMES, PARTS, TYPES
from nereid.migrate.documents import MAX_TEXT, parse_json, parse_yaml, typed
from nereid.migrate.plan import (
    MAX_FILES,
    Found,
    Item,
    MigratedModel,
    MigrationError,
    attempt,
    inside,
    model_name,
    read_bounded,
)

MAX_UNPACKED: Final = 32 << 30
"""Bytes that the files of an archive may have together."""
ADAPTER: Final = Path(__file__).parent / "torchserve_model.py"
ARCHIVE: Final = "archive"
"""The folder of the archive's files, beside the adapter."""

_MANIFEST: Final = "MAR-INF/MANIFEST.json"
_OWN_HANDLERS: Final = ("image_classifier",)
_BUILT_IN: Final = (
    "base_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier",
)  # fmt: skip
_DECIDED: Final = frozenset(
    {"batchSize", "maxBatchDelay", "minWorkers", "marName", "defaultVersion", "maxWorkers"}
)
_IGNORED: Final = frozenset({"model_store", "load_models", "models", "model_snapshot"})
_FRONTEND: Final = frozenset({"inference_address", "management_address", "metrics_address"})

_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]


class _Settings(msgspec.Struct, rename="camel"):
    """What is carried over of a model's settings."""

    batch_size: _Number = 1
    max_batch_delay: _Number = 100
    min_workers: _Number = 1


class _Registered(_Settings, kw_only=True, rename="camel"):
    """A version of `models` of config.properties."""

    mar_name: str


class _Described(msgspec.Struct, rename="camel"):
    """The model of a manifest; its files are the archive's."""

    model_name: str
    handler: str
    model_version: str | float | None = None
    serialized_file: str | None = None
    model_file: str | None = None
    config_file: str | None = None
    requirements_file: str | None = None


class _Manifest(msgspec.Struct):
    model: _Described


def models(source: Path) -> Iterator[Found]:
    """Return the models of a source; nothing of an archive is executed or unpickled.

    Raises:
        MigrationError: it has none.
    """
    properties: dict[str, str] = {}
    if source.is_file() and source.suffix != ".mar":
        properties = _properties(source)
        store = source.parent / properties.get("model_store", "model_store")
    else:
        store = source
    archives = [store] if store.is_file() else sorted(store.glob("*.mar"))
    if not archives:
        raise MigrationError(f"there is no .mar in {store}")
    settings = _model_settings(properties)
    unused = sorted(set(properties) - _IGNORED - _FRONTEND)
    notes = [f"{name} of config.properties is not carried over" for name in unused]
    for archive in archives:
        yield from attempt(archive.stem, partial(_models, archive, settings, notes))


def _properties(path: Path) -> dict[str, str]:
    lines = read_bounded(path, MAX_TEXT).decode("utf-8", "replace").replace("\\\n", "").splitlines()
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _model_settings(properties: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each archive, by its file's name."""
    what = "'models' of config.properties"
    declared = parse_json(properties.get("models", "{}").encode("utf-8", "replace"), what)
    typed(declared, dict[str, dict[str, _Registered]], what)
    return {version["marName"]: version for model in declared.values() for version in model.values()}


def _models(path: Path, settings: Mapping[str, dict[str, Any]], notes: Iterable[str]) -> list[Found]:
    if not path.is_file():
        raise MigrationError(f"{path} is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            items = list(_members(path, archive))
            described = _manifest(path, archive)
            declared = _yaml(path, archive, described)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise MigrationError(f"{path} is no model archive: {error}") from None
    name, version = model_name(described.model_name), _version(described.model_version)
    config, more = _config(name, {**declared, **settings.get(path.name, {})})
    more += _handler_notes(path, described.handler, {item.target for item in items})
    _check_files(path, described, {item.target for item in items})
    if described.requirements_file:
        more.append(
            f"install the packages of {version}/{ARCHIVE}/{described.requirements_file} where the model "
            "runs, or in an environment of its own (docs/models/environments.md)"
        )
    files = [item._replace(target=f"{version}/{ARCHIVE}/{item.target}") for item in items]
    adapter = Item(f"{version}/model.py", content=ADAPTER.read_bytes())
    return [MigratedModel(config, (adapter, *files), (*more, *notes))]


def _members(path: Path, archive: zipfile.ZipFile) -> Iterator[Item]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise MigrationError(f"{path} has more than {MAX_FILES} files")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED:  # zipfile reads no more than an entry says
        raise MigrationError(f"{path} has more than {MAX_UNPACKED} bytes unpacked")
    for entry in entries:
        if not entry.filename:
            raise MigrationError(f"{path} has a file without a name")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise MigrationError(f"{path}: {entry.filename} is a link")
        if not entry.is_dir():
            yield Item(inside(entry.filename), path, member=entry.filename)


def _text(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a short file of an archive."""
    try:
        entry = archive.getinfo(name)
    except KeyError:
        raise MigrationError(f"{path} has no {name}") from None
    if entry.file_size > MAX_TEXT:
        raise MigrationError(f"{path}: {name} has more than {MAX_TEXT} bytes")
    return archive.read(entry)


def _manifest(path: Path, archive: zipfile.ZipFile) -> _Described:
    what = f"{path}: {_MANIFEST}"
    manifest: _Manifest = parse_json(_text(path, archive, _MANIFEST), what, _Manifest)
    described = manifest.model
    if not described.handler:
        raise MigrationError(f"{what} names no handler")
    return described


def _version(text: Any) -> int:
    """Return our version for one of TorchServe's: 1 for "1.0"."""
    digits = str(text or "1").partition(".")[0]
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 19 else 1


def _yaml(path: Path, archive: zipfile.ZipFile, described: _Described) -> dict[str, Any]:
    file = described.config_file
    if not file:
        return {}
    documents = parse_yaml(_text(path, archive, file), f"{path}: {file}")
    return documents[0] if documents and isinstance(documents[0], dict) else {}


def _config(name: str, settings: Mapping[str, Any]) -> tuple[mc.ModelConfig, list[str]]:
    chosen = typed(settings, _Settings, "the model's settings")
    config = mc.ModelConfig(name=name, backend="python")
    for tensor in (NAMES, TYPES, PARTS):
        config.input.add(name=tensor, data_type=mc.TYPE_STRING, dims=[-1], allow_ragged_batch=True)
    for tensor in (ANSWER, ANSWER_TYPE):
        config.output.add(name=tensor, data_type=mc.TYPE_STRING, dims=[1])
    config.max_batch_size = max(chosen.batch_size, 1)
    if config.max_batch_size > 1:
        config.dynamic_batching.max_queue_delay_microseconds = 1000 * chosen.max_batch_delay
    config.instance_group.add(count=max(chosen.min_workers, 1))
    unused = sorted(map(str, set(settings) - _DECIDED - {"handler"}))
    return config, [f"{key} of the model's settings is not carried over" for key in unused]


def _handler_notes(path: Path, handler: str, files: Collection[str]) -> list[str]:
    """Return what to say of a handler.

    Raises:
        MigrationError: it is neither a file of the archive, nor TorchServe's, nor in a package.
    """
    name = handler.partition(":")[0]
    if name in _BUILT_IN and name not in _OWN_HANDLERS:
        return [f"the handler '{name}' is TorchServe's: install the package torchserve where the model runs"]
    file = name.rpartition("/")[2].removesuffix(".py") + ".py"
    if name in _OWN_HANDLERS or file in files:
        return []
    if name.endswith(".py") or not name.replace(".", "_").isidentifier() or "." not in name:
        raise MigrationError(f"the handler '{handler}' is not in {path}")
    return [f"the handler '{handler}' must be importable where the model runs"]


def _check_files(path: Path, described: _Described, files: Collection[str]) -> None:
    """Check that an archive has the files that its manifest names.

    Raises:
        MigrationError: it has not.
    """
    for name in filter(None, (described.serialized_file, described.model_file)):
        if inside(name) not in files:
            raise MigrationError(f"the file '{name}' of {_MANIFEST} is not in {path}")
