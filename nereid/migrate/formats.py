"""Models of a known format in a directory, as KServe, Seldon, BentoML and PAI-EAS find them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from nereid.migrate import mlserver, tfserving, torchserve
from nereid.migrate.documents import MAX_TEXT
from nereid.migrate.plan import (
    CONFIG,
    Found,
    Item,
    MigratedModel,
    MigrationError,
    attempt,
    file_inside,
    files_below,
    may_be,
    model_name,
    read_bounded,
)

RUNTIMES: Final = {kind: runtime for runtime, kind in mlserver.KINDS.items()}
FORMATS: Final = (*RUNTIMES, "tensorflow", "pytorch", "onnx", "triton")
_UNDECLARED: Final = "declare its inputs and outputs in config.pbtxt (docs/models/pytorch.md)"


def place_of(uri: str, document: Path, storage: Path | None, *names: str) -> Path:
    """Return where the files of a model are.

    Args:
        uri: where its service has them.
        document: names it. A stranger may have written that: it names nothing outside of its directory.
        storage: the model, or a directory with it; None for a file:// address.
        names: how its directory in `storage` may be called.

    Raises:
        MigrationError: they are not at hand.
    """
    if storage is not None:
        below = (storage / model_name(name) for name in names)
        place = next((path for path in below if path.is_dir()), storage)
    elif uri.startswith("file://"):
        place = _beside(document, uri)
    else:
        raise MigrationError(f"it is at '{uri}': copy its files, and name their directory by --storage")
    if "\0" in str(place) or not place.exists():
        raise MigrationError(f"there is no {place}")
    return place


def _beside(document: Path, uri: str) -> Path:
    try:
        return file_inside(document.parent, uri.removeprefix("file://"))
    except MigrationError as error:
        raise MigrationError(f"{error}: name the directory of its files by --storage") from None


def read(kind: str, name: str, place: Path) -> Iterator[Found]:
    """Return the models of a format in a place.

    Raises:
        MigrationError: there is none.
    """
    if kind == "tensorflow":
        yield saved_model(name, place)
    elif kind == "pytorch":
        properties = place / "config" / "config.properties"
        store = place / "model-store"
        yield from torchserve.models(
            store if store.is_dir() else properties if properties.is_file() else place
        )
    elif kind in RUNTIMES:
        yield mlserver.model(place, mlserver.Settings(name=name, implementation=RUNTIMES[kind]))
    elif kind == "onnx":
        yield onnx(name, place)
    else:
        raise MigrationError(f"it has a repository of Triton: serve {place} as it is")


def saved_model(name: str, place: Path, batching: tfserving.Batching | None = None) -> MigratedModel:
    """Return the model of a directory with versions, of a SavedModel, or of a directory with one of these.

    Raises:
        MigrationError: there is none.
    """
    folders = [place, *(sorted(each for each in place.iterdir() if each.is_dir()) if place.is_dir() else ())]
    for folder in folders:
        if versions := tfserving.versions_of(folder):
            return tfserving.saved_model(name, versions, batching)
    found = [folder for folder in folders if (folder / tfserving.SAVED_MODEL).is_file()]
    if len(found) != 1:
        raise MigrationError(f"expected one {tfserving.SAVED_MODEL} in {place}")
    return tfserving.saved_model(name, {1: found[0]}, batching)


def onnx(name: str, place: Path) -> MigratedModel:
    """Return the model of the one .onnx of a place, with the files beside it.

    Raises:
        MigrationError: there is none, or several.
    """
    file = _only(place, ".onnx")
    config = mc.ModelConfig(name=name, platform="onnxruntime_onnx")
    beside = files_below(file.parent, "1/") if place.is_dir() else ()
    others = (item for item in beside if item.source != file.resolve())
    return MigratedModel(config, (Item("1/model.onnx", file), *others))


def torchscript(name: str, place: Path) -> MigratedModel:
    """Return the model of the one TorchScript file of a place.

    Raises:
        MigrationError: there is none, or several.
    """
    config = mc.ModelConfig(name=name, platform="pytorch_libtorch")
    return MigratedModel(config, (Item("1/model.pt", _only(place, ".pt")),), (_UNDECLARED,))


def _only(place: Path, suffix: str) -> Path:
    found = [place] if place.is_file() else sorted(place.rglob(f"*{suffix}"))
    if len(found) != 1 or not found[0].is_file():
        raise MigrationError(f"expected one {suffix} in {place}")
    if place.is_dir() and not found[0].resolve().is_relative_to(place.resolve()):
        raise MigrationError(f"{found[0]} is a link that leads out of {place}")
    return found[0]


def triton_model(name: str, directory: Path) -> MigratedModel:
    """Return a model of a Triton repository, as it is but for its name.

    Raises:
        MigrationError: its config.pbtxt cannot be read, or a link leads out of it.
    """
    config, path = mc.ModelConfig(), directory / CONFIG
    if path.is_file():
        try:
            text_format.Parse(read_bounded(path, MAX_TEXT).decode(), config)
        except (text_format.ParseError, ValueError, RecursionError) as error:
            raise MigrationError(f"{path}: {error}") from None
    config.name = name
    items = [item for item in files_below(directory, "") if item.target != CONFIG]
    return MigratedModel(config, tuple(items))


def triton_models(repository: Path) -> Iterator[Found]:
    """Return the models of a Triton repository.

    Raises:
        MigrationError: it has none.
    """
    found = [path for path in sorted(repository.iterdir()) if may_be(is_triton_model, path)]
    if not found:
        raise MigrationError(f"{repository} has no model of Triton: no directory with {CONFIG} or a version")
    for path in found:
        yield from attempt(path.name, partial(_triton_models, path))


def _triton_models(directory: Path) -> list[Found]:
    file_inside(directory.parent, directory.name)
    return [triton_model(model_name(directory.name), directory)]


def is_triton_model(directory: Path) -> bool:
    """Return whether a directory is one of a model in a Triton repository."""
    if not directory.is_dir():
        return False
    versions = (path for path in directory.iterdir() if path.is_dir() and path.name.isdecimal())
    return (directory / CONFIG).is_file() or any(versions)
