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

`backends/registry/strategies.py` says where the file may be.
"""

from abc import ABC, abstractmethod
from typing import Any

from backends.base import Model, Request


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
