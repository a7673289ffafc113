"""Finds the custom batching strategy of a model.

The file is the one that the parameter TRITON_BATCH_STRATEGY_PATH names (absolute, or relative to the model's
directory), else the first `batchstrategy.so` or `batchstrategy.py` in the version's, the model's and the
backend's directory. By its name it must lie inside the model repository or the backend directory. A
library of Triton's (`.so`) is used as it is, by `backends/cpp/strategy.py`.
"""

import logging
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

from app.core.errors import ErrorCode, InferError, internal, invalid_arg
from app.core.files.paths import path_inside
from backends.base import Model
from backends.strategy import BatchStrategy

logger = logging.getLogger(__name__)

PATH_PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
FILE_NAMES: Final = ("batchstrategy.so", "batchstrategy.py")


def find_strategy(model: Model, backend_directory: Path | None = None) -> BatchStrategy | None:
    """Load and initialise the strategy of a model; return None if it has none.

    Raises:
        InferError: NOT_FOUND when the file of the parameter does not exist, INVALID_ARG when it lies outside
            the repository, INTERNAL when it cannot be imported or defines no strategy.
    """
    path = _path(model, backend_directory)
    if path is None:
        return None
    logger.info("Loading custom batching strategy '%s' for model '%s'", path, model.name)
    strategy = _load(model, path)
    strategy.batcher_initialize(model)
    return strategy


def _path(model: Model, backend_directory: Path | None) -> Path | None:
    roots = [model.directory.parent, *([backend_directory] if backend_directory else [])]
    named = model.parameter(PATH_PARAMETER)
    path = model.directory / named if named else next(_present(model, backend_directory), None)
    if path is None:
        return None
    inside = [path_inside(root, str(path)) for root in roots]
    path = next(filter(None, inside), None)
    if path is None:
        raise invalid_arg(
            f"batching strategy of model '{model.name}' is outside the model repository: {named or path}"
        )
    if not path.is_file():
        raise InferError(ErrorCode.NOT_FOUND, f"Batching library path not found: {named}")
    return path


def _present(model: Model, backend_directory: Path | None) -> Iterator[Path]:
    folders = [model.version_directory, model.directory]
    if backend_directory:
        folders.append(backend_directory / model.config.backend)
    return (folder / name for folder in folders for name in FILE_NAMES if (folder / name).is_file())


def _load(model: Model, path: Path) -> BatchStrategy:
    if path.suffix == ".so":
        from backends.cpp.strategy import LibraryStrategy

        return LibraryStrategy(path)
    spec = spec_from_file_location(f"nereid_batch_strategy_{model.name}", path)
    if spec is None or spec.loader is None:
        raise internal(f"unable to load batching strategy '{path.name}' of model '{model.name}'")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise internal(
            f"unable to load batching strategy '{path.name}' of model '{model.name}': {error}"
        ) from error
    found = getattr(module, "TritonBatchStrategy", None)
    if not (isinstance(found, type) and issubclass(found, BatchStrategy)):
        raise internal(
            f"batching strategy '{path.name}' of model '{model.name}' defines no class TritonBatchStrategy"
            " that is a subclass of backends.strategy.BatchStrategy"
        )
    return found()
