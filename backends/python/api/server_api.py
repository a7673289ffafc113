"""Interface of the server for Python models: calls to other models, and the model repository.

A replica installs an implementation before it initialises the model; without one, each call raises an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from app.core.errors import unsupported
from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, failed
from backends.base import Request
from backends.python.api.errors import TritonModelException
from backends.python.api.event_loop import EventLoop

if TYPE_CHECKING:  # processes of Python models have no package of ours but numpy
    from tritonclient.grpc import model_config_pb2 as mc


class ServerApi(Protocol):
    """Functions of the server that `pb_utils` gives a model. Every method may be called from any thread.

    `caller` is the identifier of the model in the chain of a call.
    """

    caller: str

    def exec(self, request: Any, decoupled: bool) -> Any:
        """Execute an `InferenceRequest`; return its response, or with `decoupled` an iterator."""

    def async_exec(self, request: Any, decoupled: bool) -> Awaitable[Any]:
        """Return an awaitable `exec`."""

    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
        """Send a request; see `backends.python.api.calls.Calls.send`."""

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        """Return the result of an `async def execute`, which runs on `loop` unless it can run inline."""

    def find_model(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        """Return a model's configuration, its version, "" for the newest, and whether it can be called now.

        Raises:
            InferError: Triton's, NOT_FOUND for an unknown model, UNAVAILABLE for one that is not loaded.
        """

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model; `config` (JSON) and `files` override those of the repository."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether the version of the model, "" for any, can be called now."""


_NO_CALLS = "BLS is only supported during the 'execute' function."


class NoServerApi:
    """The interface before a replica installs its own: every call fails."""

    caller = ""

    def exec(self, request: Any, decoupled: bool) -> Any:
        raise TritonModelException(_NO_CALLS)

    def async_exec(self, request: Any, decoupled: bool) -> Awaitable[Any]:
        raise TritonModelException(_NO_CALLS)

    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
        sink(failed(unsupported(_NO_CALLS)))
        return cancel_nothing

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        return loop.run(coroutine)

    def find_model(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        raise unsupported(_NO_CALLS)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        raise _not_available("load_model")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise _not_available("unload_model")

    def is_model_ready(self, name: str, version: str) -> bool:
        raise _not_available("is_model_ready")


def _not_available(function: str) -> TritonModelException:
    return TritonModelException(f"pb_utils.{function} is not available in this server")


executing: ContextVar[Sequence[Request]] = ContextVar("executing", default=())
"""The batch that the current thread, or a coroutine that it started, executes."""


class _Installed:
    api: ServerApi = NoServerApi()
    refused_in: ClassVar[list[str]] = []


def install(api: ServerApi) -> None:
    """Set the interface for the Python models of this process."""
    _Installed.api = api


def install_in_fork(api: ServerApi) -> None:
    """Set the interface in a process that was just forked, where nothing loads or ends a model."""
    install(api)
    _Installed.refused_in.clear()


def current() -> ServerApi:
    """Return the installed interface."""
    return _Installed.api


@contextmanager
def no_calls(where: str) -> Iterator[None]:
    """Refuse calls of other models, on every thread, within the context; `where` names it in errors.

    As in Triton: the called model may be waiting for the load of this one.
    """
    _Installed.refused_in.append(where)
    try:
        yield
    finally:
        _Installed.refused_in.remove(where)  # maybe not the last one: other models may load at the same time


def _refused_in() -> str:
    """Return where calls are refused; "" in the execution of a batch, while another model loads."""
    return _Installed.refused_in[-1] if _Installed.refused_in and not executing.get() else ""


def for_repository(model: str) -> ServerApi:
    """Return the interface to load or unload a model.

    Raises:
        TritonModelException: within `no_calls`, for the model itself, which would wait for its own end.
    """
    api = _Installed.api
    if (where := _refused_in()) and model == api.caller:
        raise TritonModelException(f"Model '{model}' cannot load or unload itself in {where}.")
    return api


def for_call(model: str) -> ServerApi:
    """Return the interface to call a model.

    Raises:
        TritonModelException: within `no_calls`.
    """
    if where := _refused_in():
        raise TritonModelException(f"{_NO_CALLS} Model '{model}' was called in {where}.")
    return _Installed.api
