"""The seam between Python models and the rest of the server: calls to other models, and their repository.

A replica that can offer them installs an implementation before the model is initialised; without one, each
call raises an error that says what is missing.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from app.core.errors import unsupported
from app.core.tensors import InferRequest, InferResponse, failed
from backends.base import Request
from backends.python.api.errors import TritonModelException
from backends.python.api.event_loop import EventLoop


class ServerApi(Protocol):
    """What `pb_utils` offers a model beyond its own requests. Every method may be called from any thread.

    `caller` is what the chain of a call says of this model.
    """

    caller: str

    def exec(self, request: Any, decoupled: bool) -> Any:
        """Execute an `InferenceRequest` on another model: its response, or an iterator of responses."""

    def async_exec(self, request: Any, decoupled: bool) -> Awaitable[Any]:
        """`exec` for a running event loop."""

    def submit(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Callable[[], None]:
        """What `exec` and `async_exec` send; see `backends.python.api.calls.Calls`."""

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        """Wait for what an `async def execute` returns: on `loop`, unless it can run where it began."""

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model, `config` (JSON) and `files` overriding what the repository holds."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model."""

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether the model (its version, or any) can be called now."""


_NO_CALLS = "BLS is only supported during the 'execute' function."


class NoServerApi:
    """Stands in until a replica installs its services."""

    caller = ""

    def exec(self, request: Any, decoupled: bool) -> Any:
        raise TritonModelException(_NO_CALLS)

    def async_exec(self, request: Any, decoupled: bool) -> Awaitable[Any]:
        raise TritonModelException(_NO_CALLS)

    def submit(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Callable[[], None]:
        sink(failed(unsupported(_NO_CALLS)))
        return lambda: None

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        return loop.run(coroutine)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        raise _not_available("load_model")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise _not_available("unload_model")

    def is_model_ready(self, name: str, version: str) -> bool:
        raise _not_available("is_model_ready")


def _not_available(function: str) -> TritonModelException:
    return TritonModelException(f"pb_utils.{function} is not available in this server")


class _Installed:
    services: ServerApi = NoServerApi()
    refused_in = ""


def install(services: ServerApi) -> None:
    """Offer these services to the Python model of this process."""
    _Installed.services = services


def current() -> ServerApi:
    """The services installed."""
    return _Installed.services


@contextmanager
def no_calls(where: str) -> Iterator[None]:
    """Refuse calls of other models meanwhile, on every thread; `where` says what the model does.

    As in Triton: a model that is not loaded yet may be the one that another, or itself, waits for.
    """
    outer, _Installed.refused_in = _Installed.refused_in, where
    try:
        yield
    finally:
        _Installed.refused_in = outer


def for_repository(model: str) -> ServerApi:
    """The services installed, to load or unload a model.

    Raises:
        TritonModelException: within `no_calls` and of the model itself, which would wait for its own end.
    """
    services = _Installed.services
    if _Installed.refused_in and model == services.caller:
        raise TritonModelException(
            f"Model '{model}' cannot load or unload itself in {_Installed.refused_in}."
        )
    return services


def for_call(model: str) -> ServerApi:
    """The services installed, for a call of a model.

    Raises:
        TritonModelException: within `no_calls`.
    """
    if _Installed.refused_in:
        raise TritonModelException(f"{_NO_CALLS} Model '{model}' was called in {_Installed.refused_in}.")
    return _Installed.services
