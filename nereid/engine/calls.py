"""Calls between the models of this process, and loads that models ask for."""

from typing import Final

from app.core.tensors import InferRequest
from app.transport.loops.thread import LoopThread
from backends.python.api.calls import executing
from deployments.bls.service import Connection, ModelCalls
from deployments.spec import ModelSpec

_NO_MODEL: Final = ModelSpec("", 0, "", b"", "", "", b"")


class LocalCalls(ModelCalls):
    """The server as the Python models of this process see it, all of them.

    Which model calls is known by the batch that it executes; a call from a thread that the model has started
    itself is taken for a client's.
    """

    def __init__(self, plane: LoopThread, connection: Connection) -> None:
        super().__init__(_NO_MODEL, plane)
        self._local = connection

    @property
    def caller(self) -> str:
        """The model whose batch the current thread executes; "" for none."""
        batch = executing.get()
        infer: InferRequest | None = batch[0].infer if batch else None
        return "" if infer is None else infer.model_name

    @caller.setter
    def caller(self, name: str) -> None:
        """Do nothing: there is no one caller."""

    @property
    def _requester(self) -> str:
        return self.caller

    def _opened(self) -> Connection:
        return self._local

    async def _connection(self) -> Connection:
        return self._local

    async def close(self) -> None:
        """Do nothing: the connection is the engine's."""
