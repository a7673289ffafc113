"""Puts a replica together: Ray's worker, a Python model's process, engine and benchmarks all do it so."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from app.native.choice import is_native
from app.native.strings import use_compiled_strings
from app.transport.loops.thread import LoopThread
from app.transport.memory.client_regions import use_mappings
from deployments.replica.loading import load_model
from deployments.replica.readiness import ReadinessWatch
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import MakeBatched
from deployments.spec import ModelSpec

_STOP_S: Final = 5.0
"""Time for each instance to end."""


class End(Protocol):
    """The end at which requests reach a replica: the server of its channels, or a channel of this process."""

    def announce(self, ready: bool) -> None:
        """Tell callers whether the model reports itself ready."""


EndT = TypeVar("EndT", bound=End)


class Assembled(Generic[EndT]):
    """A loaded model version that executes requests.

    Attributes:
        served: executes them.
        end: by what they come.
    """

    def __init__(self, served: ServedModel, end: EndT, readiness: ReadinessWatch) -> None:
        """Use `assemble` instead."""
        self.served = served
        self.end = end
        self._readiness = readiness

    async def close(self) -> None:
        """Unload the model, once no request comes any more; on the data-plane loop."""
        self._readiness.stop()
        await asyncio.to_thread(self.served.close, _STOP_S)


def assemble(
    spec: ModelSpec, plane: LoopThread, batched: MakeBatched, make_end: Callable[[ServedModel], EndT]
) -> Assembled[EndT]:
    """Load a model version and start to execute its requests. Blocks; not for the data-plane loop.

    Args:
        spec: the model version, whose files are on this node.
        plane: the thread of the data-plane loop.
        batched: see `load_model`.
        make_end: returns by what requests come; called on the loop.

    Raises:
        InferError: the model cannot be served.
    """
    if is_native(spec.server.transport.data_plane):
        plane.loop.call_soon_threadsafe(use_mappings)
        use_compiled_strings()
    served = load_model(spec, plane, batched)
    try:
        return plane.call(_open(served, make_end))
    except BaseException:
        served.close(_STOP_S)
        raise


async def _open(served: ServedModel, make_end: Callable[[ServedModel], EndT]) -> Assembled[EndT]:
    await served.open()
    end = make_end(served)
    readiness = served.instances.watch_readiness(end.announce)
    await readiness.start()
    served.instances.watch_executions(end.announce)
    return Assembled(served, end, readiness)
