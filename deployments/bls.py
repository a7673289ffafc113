"""What a Python model may ask of the server: calls to other models, and the model repository.

A replica whose model asks gets a router of its own, at its first call: it follows the repository manager as
an ingress does, so a call goes straight to a replica of the model called.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Coroutine, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import ray
from ray.serve.handle import DeploymentHandle

from app.core.errors import ErrorCode, FailureReason, InferError, invalid_arg, unavailable
from app.core.tensors import InferRequest, InferResponse, failed
from app.ensemble.runner import EnsembleRunner
from app.routing.manager_client import ManagerClient, follow
from app.routing.router import Call, Router, Sink
from app.transport.loop import LoopThread
from app.transport.settings import TransportSettings
from backends.python.calls import ResponseIterator, callers, model_response, wire_request
from backends.python.errors import TritonModelException
from backends.python.request import InferenceRequest
from backends.python.response import InferenceResponse
from deployments.nested import NestedCall
from deployments.spec import MANAGER, ModelSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_TABLE_S: Final = 15.0


class Connection:
    """A router, and the manager that it follows. Lives on the data-plane loop."""

    def __init__(self, router: Router, manager: ManagerClient) -> None:
        self.router = router
        self.ensembles = router.ensembles = EnsembleRunner(router)
        self.manager = manager
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, spec: ModelSpec) -> "Connection":
        """Make a router and wait for its first table.

        Raises:
            InferError: UNAVAILABLE when the manager does not answer.
        """
        loop = asyncio.get_running_loop()
        # Making a handle asks the controller, and blocks.
        handle = await loop.run_in_executor(None, _manager_handle, spec)
        node_id = ray.get_runtime_context().get_node_id()
        router = Router(node_id, spec.key, TransportSettings(arena_bytes=spec.arena_bytes))
        made = cls(router, ManagerClient(handle))
        routing = asyncio.Event()
        watcher = f"{spec.application}-{uuid.uuid4().hex}"
        made._following = loop.create_task(follow(made.manager, router, watcher, lambda _: routing.set()))
        try:
            async with asyncio.timeout(_FIRST_TABLE_S):
                await routing.wait()
        except TimeoutError:
            await made.close()
            raise unavailable("the repository manager does not answer") from None
        return made

    async def close(self) -> None:
        """Stop following and close every channel."""
        if self._following is not None:
            self._following.cancel()
        await self.router.close(1.0)


def _manager_handle(spec: ModelSpec) -> Any:
    handle: Any = DeploymentHandle(MANAGER, spec.manager)
    handle._init()
    return handle


class ModelCalls:
    """Implements `backends.python.services.Services` for the model of this replica."""

    def __init__(self, spec: ModelSpec, plane: LoopThread) -> None:
        self._spec = spec
        self._plane = plane
        self._opening: asyncio.Task[Any] | None = None

    def exec(self, request: InferenceRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
        infer, nested = self._call(request, waits=not decoupled)
        if decoupled:
            return self._wait(self._start(infer, nested))
        opened = self._opened()
        if opened is None:
            return model_response(self._wait(self._one(infer, nested)))
        answers: SimpleQueue[InferResponse] = SimpleQueue()
        self._plane.loop.call_soon_threadsafe(self._go, opened.router, infer, nested, answers.put)
        return model_response(answers.get())

    def async_exec(
        self, request: InferenceRequest, decoupled: bool
    ) -> Awaitable[InferenceResponse | ResponseIterator]:
        return self._exec_async(*self._call(request), decoupled)

    async def _exec_async(
        self, infer: InferRequest, nested: NestedCall, decoupled: bool
    ) -> InferenceResponse | ResponseIterator:
        if decoupled:
            return await asyncio.wrap_future(self._begin(self._start(infer, nested)))
        return model_response(await asyncio.wrap_future(self._begin(self._one(infer, nested))))

    def _call(self, request: InferenceRequest, waits: bool = False) -> tuple[InferRequest, NestedCall]:
        executing = callers()
        infer = wire_request(request, self._spec.name, executing, waits)
        return infer, NestedCall(infer, executing)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self._manage(self._load(name, config, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._manage(self._unload(name, unload_dependents))

    def is_model_ready(self, name: str, version: str) -> bool:
        return self._wait(self._ready(name, version))

    def metric_family(self, name: str, description: str, kind: int) -> Any:
        raise TritonModelException("pb_utils.MetricFamily is not available in this server")

    def ensembles(self) -> list[Any]:
        """Counters of the ensembles that the calls have run here; on the data-plane loop."""
        opened = self._opened()
        return [] if opened is None else opened.ensembles.report()

    async def close(self) -> None:
        """Close what the calls have opened; on the data-plane loop."""
        opened = self._opened()
        if opened is not None:
            await opened.close()
        elif self._opening is not None:
            self._opening.cancel()

    def _opened(self) -> Connection | None:
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        connection: Connection = opening.result()
        return connection

    def _begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._plane.loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._begin(work).result()

    def _manage(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._wait(work)
        except InferError as error:
            raise TritonModelException(error.message) from error

    async def _connection(self) -> Connection:
        """The connection, made at the first call; a failure is not kept."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(Connection.open(self._spec))
        opening = self._opening
        try:
            connection: Connection = await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None
            raise
        return connection

    def _go(self, router: Router, infer: InferRequest, nested: NestedCall, sink: Sink) -> None:
        """Make a call for a thread that waits for its sink: cheaper than a task and two futures."""
        try:
            self._send(router, infer, sink, nested, decoupled=False)
        except InferError as error:
            sink(failed(error))
        except Exception as error:
            logger.exception("calling model '%s'", infer.model_name)
            sink(failed(error))

    async def _one(self, infer: InferRequest, nested: NestedCall) -> InferResponse:
        answered: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def sink(response: InferResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        try:
            call = await self._submit(infer, sink, nested, decoupled=False)
        except InferError as error:
            return failed(error)
        try:
            return await answered
        except asyncio.CancelledError:
            call.cancel()
            raise

    async def _start(self, infer: InferRequest, nested: NestedCall) -> ResponseIterator:
        responses = ResponseIterator()
        try:
            call = await self._submit(infer, responses.put, nested, decoupled=True)
        except InferError as error:
            responses.put(failed(error))
            return responses
        loop = self._plane.loop
        responses.cancels(lambda: _threadsafe(loop, call))
        return responses

    async def _submit(self, infer: InferRequest, sink: Sink, nested: NestedCall, decoupled: bool) -> Call:
        return self._send((await self._connection()).router, infer, sink, nested, decoupled)

    def _send(
        self, router: Router, infer: InferRequest, sink: Sink, nested: NestedCall, decoupled: bool
    ) -> Call:
        name = infer.model_name
        if name in infer.chain:
            raise invalid_arg(
                f"circular call of models: {' -> '.join((*infer.chain, name))}; a model that calls itself, "
                "directly or through others, would wait for ever"
            )
        try:
            entry = router.resolve(name, infer.model_version)
        except InferError as error:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise InferError(error.code, text) from error
        if entry.decoupled and not decoupled:
            raise invalid_arg(
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' "
                "or 'async_exec' calls for decoupled models.'"
            )
        if nested.unwanted:
            raise InferError(ErrorCode.CANCELLED, "", FailureReason.CANCELED)

        def take(response: InferResponse) -> None:
            if response.final:
                nested.ended(response)
            sink(response)

        call = router.submit(infer, take)
        nested.begun(call.cancel)
        return call

    async def _load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        await (await self._connection()).manager.load(name, config or None, files)

    async def _unload(self, name: str, unload_dependents: bool) -> None:
        await (await self._connection()).manager.unload(name, unload_dependents)

    async def _ready(self, name: str, version: str) -> bool:
        try:
            router = (await self._connection()).router
            return router.available(router.resolve(name, version))
        except InferError:
            return False


def _threadsafe(loop: asyncio.AbstractEventLoop, call: Call) -> None:
    loop.call_soon_threadsafe(call.cancel)
