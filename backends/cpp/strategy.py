"""Batching strategies that are libraries: the five functions TRITONBACKEND_ModelBatch* of Triton's API."""

import logging
from ctypes import byref, c_bool
from pathlib import Path

import msgspec

from app.core.errors import InferError
from backends.base import Model, Request
from backends.cpp.configuration import config_text
from backends.cpp.library import check, make, shim
from backends.cpp.requests import RequestEncoder
from backends.strategy import BatchStrategy

logger = logging.getLogger(__name__)


class LibraryStrategy(BatchStrategy):
    """Asks a library which requests join a batch; a batch is the library's pointer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._library = shim()
        self._model = self._strategy = 0

    def batcher_initialize(self, model: Model) -> None:
        self._encoder = RequestEncoder(model)
        config = config_text(model.config)
        about = (model.name, model.version, str(model.directory.absolute()), config, False)
        message = msgspec.msgpack.encode(about)
        self._model = make(self._library.nereid_model_new, None, message, len(message))
        self._strategy = make(self._library.nereid_strategy_new, str(self._path).encode(), self._model)

    def batcher_finalize(self) -> None:
        try:
            check(self._library.nereid_strategy_delete(self._strategy))
        except InferError:
            logger.exception("Custom batcher finalization failed for '%s'", self._path)
        self._library.nereid_model_delete(self._model)

    def batch_initialize(self) -> int:
        return make(self._library.nereid_batch_new, self._strategy)

    def batch_finalize(self, batch: int) -> None:
        check(self._library.nereid_batch_delete(self._strategy, batch))

    def include_request(self, request: Request, batch: int) -> bool:
        message = self._encoder.single(request.infer)
        included = c_bool(False)
        check(self._library.nereid_include(self._strategy, message, len(message), batch, byref(included)))
        return included.value
