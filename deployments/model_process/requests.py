"""What a worker of Ray answers to the process of its model, and to ingresses that ask for that."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from app.core.errors import ErrorCode, InferError, unsupported
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest
from app.ray_adapter.serve import replicas
from app.transport.channel.busy import BUSY
from deployments.bls.cluster import RayCluster
from deployments.model_process.calls import METHODS
from deployments.spec import Description


class HostHandler:
    """Answers control calls; on the data-plane loop.

    Args:
        manager: the application of the repository manager.
        busy_s: returns for how many seconds the process has been executing; 0 when it does not.
    """

    def __init__(self, manager: str, busy_s: Callable[[], float]) -> None:
        self._application = manager
        self._busy_s = busy_s
        self._cluster = RayCluster()
        self._manager: asyncio.Future[Any] | None = None
        self._watches: dict[str, _Watch] = {}
        self._told: asyncio.Queue[list[Any]] = asyncio.Queue()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._loaded: asyncio.Future[tuple[Description, dict[str, str]]] | None = None
        self._verbs = {
            "loaded": self._on_loaded,
            "answer": self._on_answer,
            "next": self._next,
            "manage": self._manage,
            "watch": self._watch,
            "unwatch": self._unwatch,
            BUSY: self._busy,
        }

    def begin(self) -> None:
        """Forget the process before, and expect another."""
        self.close()
        self._told = asyncio.Queue()
        self._loaded = asyncio.get_running_loop().create_future()

    async def loaded(self) -> tuple[Description, dict[str, str]]:
        """Wait for the outcome of the process's load, and its addresses."""
        assert self._loaded is not None
        return await asyncio.shield(self._loaded)

    def has_loaded(self) -> bool:
        """Whether the process has told the outcome of its load."""
        return self._loaded is not None and self._loaded.done()

    def tell(self, *message: Any) -> None:
        """Tell the process something."""
        self._told.put_nowait(list(message))

    async def ask(self, what: str, timeout: float) -> Any:
        """Return the process's answer to a question.

        Raises:
            TimeoutError: it does not answer.
        """
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell("ask", number, what)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            del self._asked[number]

    async def _on_answer(self, answer: Any) -> None:
        number, value = answer
        if (asked := self._asked.get(number)) is not None and not asked.done():
            asked.set_result(value)

    def close(self) -> None:
        """End what is done for a process."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.end()

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        raise unsupported("no requests are served here")

    async def control(self, verb: str, payload: Any) -> Any:
        """Answer a control call.

        Raises:
            InferError: UNSUPPORTED for an unknown verb, or the error of the call.
        """
        if verb not in self._verbs:
            raise InferError(ErrorCode.UNSUPPORTED, f"unknown control verb '{verb}'")
        return await self._verbs[verb](payload)

    async def _on_loaded(self, report: Any) -> None:
        description, addresses = report
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result((msgspec.msgpack.decode(description, type=Description), addresses))

    async def _next(self, _: Any) -> list[Any]:
        return await self._told.get()

    async def _busy(self, _: Any) -> float:
        return self._busy_s()

    async def _manage(self, call: Any) -> Any:
        name, arguments = call
        if name not in METHODS:
            raise unsupported(f"models do not call '{name}' of the repository manager")
        response = getattr(await self._handle(), name).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:  # Serve does not stop the manager while a call is in flight
            response.cancel()
            raise
        except InferError as error:
            raise error.failure.error() from None  # Serve raises a subclass of two errors

    async def _handle(self) -> Any:
        if self._manager is None:
            self._manager = asyncio.get_running_loop().run_in_executor(
                None, self._cluster.open_manager, self._application
            )
        try:
            return await asyncio.shield(self._manager)
        except Exception:
            self._manager = None
            raise

    async def _watch(self, what: Any) -> None:
        deployment, application = what
        await self._unwatch(application)
        loop = asyncio.get_running_loop()
        watch = self._watches[application] = _Watch(application, loop, self.tell)
        replicas.subscribe(application, watch.publish)
        watch.handle = loop.run_in_executor(None, self._cluster.watch_replicas, deployment, application)
        await asyncio.shield(watch.handle)

    async def _unwatch(self, application: Any) -> None:
        watch = self._watches.pop(application, None)
        if watch is not None:
            watch.end()


class _Watch:
    """The replicas of an application, which are told to the process at every change."""

    def __init__(self, application: str, loop: asyncio.AbstractEventLoop, tell: Callable[..., None]) -> None:
        self.handle: asyncio.Future[Any] | None = None
        self._application = application
        self._loop = loop
        self._tell = tell

    def publish(self, found: tuple[replicas.ReplicaAddress, ...]) -> None:
        """Tell the replicas; called from Serve's threads."""
        metadata = {each.replica_id: msgspec.to_builtins(each) for each in found}
        self._loop.call_soon_threadsafe(self._tell, "replicas", self._application, metadata)

    def end(self) -> None:
        """Stop, without waiting."""
        replicas.unsubscribe(self._application, self.publish)
        if self.handle is not None:
            self.handle.add_done_callback(self._shut_down)  # it may be about to be opened

    def _shut_down(self, handle: "asyncio.Future[Any]") -> None:
        if not handle.exception():
            self._loop.run_in_executor(None, handle.result().shutdown)
