"""TorchServe: a model archive (.mar), a store of them, or a `config.properties`."""

import json
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from tritonclient.grpc import model_config_pb2 as mc

from app.protocol.torchserve import ANSWER, ANSWER_TYPE, NAMES, PARTS, TYPES
from app.tools.migrate.plan import MAX_FILES, Item, MigratedModel, MigrationError, inside, read_bounded

MAX_UNPACKED: Final = 32 << 30
"""Bytes that the files of an archive may have together."""
ADAPTER: Final = Path(__file__).parent / "torchserve_model.py"
ARCHIVE: Final = "archive"
"""The folder of the archive's files, beside the adapter."""

_MANIFEST: Final = "MAR-INF/MANIFEST.json"
_MAX_TEXT: Final = 16 << 20
_OWN_HANDLERS: Final = ("image_classifier",)
_BUILT_IN: Final = (
    "base_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier",
)  # fmt: skip
_DECIDED: Final = frozenset(
    {"batchSize", "maxBatchDelay", "minWorkers", "marName", "defaultVersion", "maxWorkers"}
)
_IGNORED: Final = frozenset({"model_store", "load_models", "models", "model_snapshot"})
_FRONTEND: Final = frozenset({"inference_address", "management_address", "metrics_address"})


def models(source: Path) -> Iterator[MigratedModel]:
    """Return the models of a source; nothing of an archive is executed or unpickled.

    Raises:
        MigrationError: it has none, or one cannot be migrated.
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
        yield _model(archive, settings, notes)


def _properties(path: Path) -> dict[str, str]:
    lines = read_bounded(path, _MAX_TEXT).decode("utf-8", "replace").replace("\\\n", "").splitlines()
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _model_settings(properties: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each archive, by its file's name."""
    try:
        declared = json.loads(properties.get("models", "{}"))
        versions = [version for model in declared.values() for version in model.values()]
        return {str(version["marName"]): version for version in versions}
    except (ValueError, AttributeError, TypeError, KeyError):
        raise MigrationError(
            "'models' of config.properties is no JSON of models, versions and settings"
        ) from None


def _model(path: Path, settings: Mapping[str, dict[str, Any]], notes: list[str]) -> MigratedModel:
    try:
        with zipfile.ZipFile(path) as archive:
            items = list(_members(path, archive))
            described = _manifest(path, archive)
            declared = _yaml(path, archive, described)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise MigrationError(f"{path} is no model archive: {error}") from None
    name, version = str(described["modelName"]), _version(described.get("modelVersion"))
    chosen = {**declared, **settings.get(path.name, {})}
    config, more = _config(name, chosen)
    more += _handler_notes(described)
    if requirements := described.get("requirementsFile"):
        more.append(
            f"install the packages of {version}/{ARCHIVE}/{requirements} where the model runs, or in an "
            "environment of its own (parameter 'requirements' or 'environment', docs/environments.md)"
        )
    files = [item._replace(target=f"{version}/{ARCHIVE}/{item.target}") for item in items]
    adapter = Item(f"{version}/model.py", content=ADAPTER.read_bytes())
    return MigratedModel(config, (adapter, *files), (*more, *notes))


def _members(path: Path, archive: zipfile.ZipFile) -> Iterator[Item]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise MigrationError(f"{path} has more than {MAX_FILES} files")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED:  # zipfile reads no more than an entry says
        raise MigrationError(f"{path} has more than {MAX_UNPACKED} bytes unpacked")
    for entry in entries:
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
    if entry.file_size > _MAX_TEXT:
        raise MigrationError(f"{path}: {name} has more than {_MAX_TEXT} bytes")
    return archive.read(entry)


def _manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        described = json.loads(_text(path, archive, _MANIFEST))["model"]
    except (KeyError, ValueError, TypeError):
        raise MigrationError(f"{path} has no {_MANIFEST} with a 'model'") from None
    if not isinstance(described, dict) or not described.get("modelName") or not described.get("handler"):
        raise MigrationError(f"{path}: {_MANIFEST} names no model or handler")
    return described


def _version(text: Any) -> int:
    """Return our version for one of TorchServe's: 1 for "1.0"."""
    digits = str(text or "1").partition(".")[0]
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 19 else 1


def _yaml(path: Path, archive: zipfile.ZipFile, described: Mapping[str, Any]) -> dict[str, Any]:
    file = described.get("configFile")
    if not file:
        return {}
    try:
        settings = yaml.safe_load(_text(path, archive, str(file)))
    except (yaml.YAMLError, RecursionError) as error:
        raise MigrationError(f"{path}: {file} cannot be read: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _config(name: str, settings: Mapping[str, Any]) -> tuple[mc.ModelConfig, list[str]]:
    config = mc.ModelConfig(name=name, backend="python")
    for tensor in (NAMES, TYPES, PARTS):
        config.input.add(name=tensor, data_type=mc.TYPE_STRING, dims=[-1], allow_ragged_batch=True)
    for tensor in (ANSWER, ANSWER_TYPE):
        config.output.add(name=tensor, data_type=mc.TYPE_STRING, dims=[1])
    config.max_batch_size = max(_number(settings, "batchSize", 1), 1)
    if config.max_batch_size > 1:
        delay = _number(settings, "maxBatchDelay", 100)
        config.dynamic_batching.max_queue_delay_microseconds = 1000 * delay
    config.instance_group.add(count=max(_number(settings, "minWorkers", 1), 1))
    unused = sorted(set(settings) - _DECIDED - {"handler"})
    return config, [f"{key} of the model's settings is not carried over" for key in unused]


def _number(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    if not isinstance(value, int) or not 0 <= value < 1 << 20:
        raise MigrationError(f"{key} is {value!r}, no number")
    return value


def _handler_notes(described: Mapping[str, Any]) -> list[str]:
    handler = str(described["handler"])
    if handler in _BUILT_IN and handler not in _OWN_HANDLERS:
        return [
            f"the handler '{handler}' is TorchServe's: install the package torchserve where the model runs"
        ]
    if handler.endswith(".py") or handler in _OWN_HANDLERS or ".py:" in handler:
        return []
    return [f"the handler '{handler}' must be importable where the model runs"]
