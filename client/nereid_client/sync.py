"""The client for programs without asyncio: the same calls, which wait.

One thread runs the connections of all servers of a process. Use none that was made before a `fork`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, TypeVar

from nereid_client.aio import AsyncModel, AsyncSequence, AsyncServer
from nereid_client.pool import AsyncPool
from nereid_client.result import Result
from nereid_client.signature import Signature
from nereid_client.transport import Tls

T = TypeVar("T")
_THREAD: Final = "nereid-client"
_LAST_S: Final = 1.0
"""Seconds in which connections that were not closed are."""

_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:  # `cache` alone lets threads that call at once each start one
        return _started()


@cache
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True).start()
    return loop


def _begin(call: Coroutine[Any, Any, T]) -> Future[T]:
    return asyncio.run_coroutine_threadsafe(call, _loop())


def _wait(call: Coroutine[Any, Any, T]) -> T:
    future = _begin(call)
    try:
        return future.result()
    except BaseException:  # KeyboardInterrupt too
        future.cancel()
        raise


async def _made(url: str, arguments: Mapping[str, Any]) -> AsyncServer:
    server = AsyncServer(url, **arguments)  # in the loop whose connections it has
    weakref.finalize(server.transport, _let_go, asyncio.get_running_loop(), server.transport.closing)
    return server


def _let_go(loop: asyncio.AbstractEventLoop, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close connections that nobody has any more, and at the end of the program those that were left open."""
    future = asyncio.run_coroutine_threadsafe(closing(), loop)
    if _runs_elsewhere():  # not in this thread, and not before a fork
        with contextlib.suppress(Exception):
            future.result(_LAST_S)


def _runs_elsewhere() -> bool:
    current = threading.current_thread()
    return any(each.name == _THREAD and each is not current for each in threading.enumerate())


class Server:
    """A server; see `AsyncServer`."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        **options: Any,
    ) -> None:
        self._server = _wait(_made(url, {"token": token, "headers": headers, "tls": tls, **options}))

    def __repr__(self) -> str:
        return repr(self._server).replace("AsyncServer", "Server", 1)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        _wait(self._server.close())

    def live(self) -> bool:
        """Return whether the server runs; False if it cannot be reached."""
        return _wait(self._server.live())

    def ready(self, model: str = "", version: str = "") -> bool:
        """Return whether the server, or a model, is ready; False if the server cannot be reached."""
        return _wait(self._server.ready(model, version))

    def wait_ready(self, model: str = "", version: str = "", timeout: float = 60.0) -> None:
        """Wait until the server, or a model, is ready."""
        _wait(self._server.wait_ready(model, version, timeout))

    def metadata(self) -> Mapping[str, Any]:
        """Return the server's name, version and extensions."""
        return _wait(self._server.metadata())

    def statistics(self, model: str, version: str = "") -> list[Mapping[str, Any]]:
        """Return what the server has counted of a model, of each version, as the JSON of the protocol."""
        return list(_wait(self._server.statistics(model, version)))

    def index(self) -> list[Mapping[str, Any]]:
        """Return the models of the server's repositories; see `AsyncServer.index`."""
        return list(_wait(self._server.index()))

    def load(
        self,
        model: str,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 300.0,
    ) -> None:
        """Load a model, or load it again; see `AsyncServer.load`."""
        _wait(self._server.load(model, config, files, timeout))

    def unload(self, model: str, timeout: float = 300.0) -> None:
        """Unload a model; needs a server in mode EXPLICIT."""
        _wait(self._server.unload(model, timeout))

    def model(self, name: str, version: str | int = "") -> Model:
        """Return a model; its inputs and outputs are read at the first call."""
        return Model(self._server.model(name, version))

    @contextlib.contextmanager
    def pool(
        self, slots: int = 32, slot_bytes: int | str = "1MiB", device: str = "cpu"
    ) -> Iterator[AsyncPool]:
        """Share memory with a server on this machine; see `AsyncServer.pool`."""
        entered = self._server.pool(slots, slot_bytes, device)
        pool = _wait(_enter(entered))
        try:
            yield pool
        finally:
            _wait(_leave(entered))


async def _enter(entered: contextlib.AbstractAsyncContextManager[T]) -> T:
    return await entered.__aenter__()


async def _leave(entered: contextlib.AbstractAsyncContextManager[Any]) -> None:
    await entered.__aexit__(None, None, None)


class Model:
    """A model of a server; see `AsyncModel`."""

    def __init__(self, model: AsyncModel) -> None:
        self._model = model
        self.name, self.version = model.name, model.version

    def __repr__(self) -> str:
        return repr(self._model).replace("AsyncModel", "Model", 1)

    def options(self, **options: Any) -> Model:
        """Return the same model, called with other `Options`."""
        return Model(self._model.options(**options))

    def via(self, pool: AsyncPool) -> Model:
        """Return the same model, called through the pool's shared memory."""
        return Model(self._model.via(pool))

    def described(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the model's metadata and configuration as the JSON of the protocol."""
        return _wait(self._model.described())

    def signature(self) -> Signature:
        """Return what the model takes and gives; read once."""
        return _wait(self._model.signature())

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Result:
        return _wait(self._model(inputs, **named))

    def submit(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Future[Result]:
        """Call it, and return at once with the future of the result."""
        return _begin(self._model(inputs, **named))

    def map(self, values: Iterable[Mapping[str, Any]], concurrency: int = 64) -> Iterator[Result]:
        """Yield the results of many calls in the order of their inputs, so many of them at once."""
        waiting: deque[Future[Result]] = deque()
        try:
            for inputs in values:
                waiting.append(self.submit(inputs))
                if len(waiting) >= concurrency:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def stream(
        self, inputs: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Generator[Result, None, None]:
        """Yield the responses of a decoupled model."""
        responses = self._model.stream(inputs, **named)
        try:
            while (response := _wait(_next(responses))) is not None:
                yield response
        finally:
            _wait(responses.aclose())  # type: ignore[attr-defined]

    def feedback(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Say what was right, or how good answers were; see `AsyncModel.feedback`."""
        return _wait(self._model.feedback(records))

    def feedback_figures(self) -> Mapping[str, Any]:
        """Return the accuracy or mean score of each version, and what became of the records."""
        return _wait(self._model.feedback_figures())

    def sequence(self) -> Sequence:
        """Return a sequence, to be used as a context manager."""
        return Sequence(self._model.sequence())


async def _next(responses: AsyncIterator[T]) -> T | None:
    return await anext(responses, None)


class Sequence:
    """The requests of one sequence; see `AsyncSequence`."""

    def __init__(self, sequence: AsyncSequence) -> None:
        self._sequence = sequence
        self.id = sequence.id

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *exc: Any) -> None:
        _wait(self._sequence.__aexit__(*exc))

    def __call__(
        self, inputs: Mapping[str, Any] | None = None, /, *, last: bool = False, **named: Any
    ) -> Result:
        return _wait(self._sequence(inputs, last=last, **named))
