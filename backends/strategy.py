"""Custom batching: a Python class that decides which requests share a batch.

Triton's custom batching strategies are shared libraries with five functions (TRITONBACKEND_ModelBatch* in
its backend API); here they are the five methods of `BatchStrategy`. A file `batchstrategy.py` defines the
class as `TritonBatchStrategy`:

    from backends.strategy import BatchStrategy

    class TritonBatchStrategy(BatchStrategy):
        def batcher_initialize(self, model):
            self.limit = int(model.parameter("MAX_BATCH_VOLUME_BYTES"))

        def batch_initialize(self):
            return [self.limit]

        def include_request(self, request, batch):
            volume = sum(len(tensor.data) for tensor in request.infer.inputs)
            if volume > batch[0]:
                return False
            batch[0] -= volume
            return True

The file is the one that the parameter TRITON_BATCH_STRATEGY_PATH names (absolute, or relative to the model's
directory), else the first `batchstrategy.so` or `batchstrategy.py` in the version's, the model's and the
backend's directory. By its name it must lie inside the model repository or the backend directory. A
library of Triton's (`.so`) is used as it is, by `backends/cpp/strategy.py`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from app.core.errors import ErrorCode, InferError, internal, invalid_arg
from app.core.own_modules import import_own
from app.core.paths import path_inside
from backends.base import Model, Request

logger = logging.getLogger(__name__)

PATH_PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
FILE_NAMES: Final = ("batchstrategy.so", "batchstrategy.py")


class BatchStrategy(ABC):
    """Decides whether the next request, whose size and shapes fit, joins the batch that is being formed.

    There is one object for each replica of a model version. All methods but the first and the last run on the
    data-plane loop, so they must be quick. The first request of a batch is not subject to the strategy: a
    request that fits no batch executes alone.
    """

    def batcher_initialize(self, model: Model) -> None:  # noqa: B027  (an author may leave it out)
        """Prepare for a model that is being loaded (TRITONBACKEND_ModelBatcherInitialize)."""

    def batcher_finalize(self) -> None:  # noqa: B027
        """Release everything when the model is unloaded (TRITONBACKEND_ModelBatcherFinalize)."""

    def batch_initialize(self) -> Any:
        """Return the record of a new batch (TRITONBACKEND_ModelBatchInitialize)."""
        return None

    def batch_finalize(self, batch: Any) -> None:  # noqa: B027
        """Release the record of a batch that was formed or discarded (TRITONBACKEND_ModelBatchFinalize)."""

    @abstractmethod
    def include_request(self, request: Request, batch: Any) -> bool:
        """Whether a request joins (TRITONBACKEND_ModelBatchIncludeRequest); may change the record `batch`.

        An exception is logged and keeps the request out.
        """


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
        strategy: BatchStrategy = import_own("backends.cpp.strategy").LibraryStrategy(path)
        return strategy
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
