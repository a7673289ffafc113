"""Models as another Serve application of the same cluster calls them.

    from app.handle import model_handle

    simple = model_handle("simple")
    outputs = await simple.remote({"INPUT0": array, "INPUT1": array})

Each version of a model is a Serve application that answers a `DeploymentHandle`. A reload gives it another
name; the handle made here follows the routing table to the application in service. An ensemble has no
application of its own: an ingress runs it.
"""

import asyncio
import threading
import uuid
from typing import Any, Final

from ray import serve
from ray.serve.handle import DeploymentHandle

from app.core.errors import unavailable
from app.main import APPLICATION, INGRESS, MANAGER
from app.routing.manager_client import ManagerClient, follow
from app.routing.table import RoutingTable
from app.transport.event_loop_thread import LoopThread

_FIRST_TABLE_S: Final = 15.0


class ModelHandle:
    """Calls of one model. May be used from any thread or event loop."""

    def __init__(self, tables: "Tables", name: str, version: str, options: dict[str, Any]) -> None:
        """Use `model_handle`."""
        self._tables = tables
        self._name = name
        self._version = version
        self._options = options
        self._application = ""
        self._handle: Any = None

    def options(self, **options: Any) -> "ModelHandle":
        """The same model with options of Serve's handles, such as `stream=True` for a decoupled one."""
        return ModelHandle(self._tables, self._name, self._version, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; arguments and results are those of `app.routing.handle_calls.HandleCalls.call`.

        Returns:
            Serve's response: `await` it or ask its `result()`; with `stream=True`, iterate over it.

        Raises:
            InferError: there is no such model. Awaiting the response raises what the model answers, as a
                subclass of `InferError` that Serve makes.
        """
        entry = self._tables.table.resolve(self._name, self._version)
        if entry.application:
            return self._to(entry.name, entry.application, "__call__").remote(*args, **kwargs)
        ingress = self._to(INGRESS, self._tables.application, "call")
        return ingress.remote(self._name, self._version, *args, **kwargs)

    def _to(self, deployment: str, application: str, method: str) -> Any:
        if self._handle is None or application != self._application:
            handle: Any = serve.get_deployment_handle(deployment, application)
            self._handle = handle.options(method_name=method, **self._options)
            self._application = application
        return self._handle


class Tables:
    """Keeps the newest routing table of a server; a thread of its own follows the repository manager."""

    def __init__(self, application: str) -> None:
        """Start to follow.

        Raises:
            InferError: UNAVAILABLE when no table comes.
        """
        self.application = application
        self.table = RoutingTable()
        self._first = threading.Event()
        handle: Any = DeploymentHandle(MANAGER, application)
        handle._init()
        plane = LoopThread("model-handles")
        watcher = f"handles-{uuid.uuid4().hex}"
        work = follow(ManagerClient(handle), self, watcher, lambda _: self._first.set())
        following = asyncio.run_coroutine_threadsafe(work, plane.loop)
        if not self._first.wait(_FIRST_TABLE_S):
            following.cancel()
            raise unavailable("the repository manager does not answer")

    async def apply(self, table: RoutingTable) -> None:
        self.table = table


_lock = threading.Lock()
_tables: dict[str, Tables] = {}


def model_handle(name: str, version: str | int = "", application: str = APPLICATION) -> ModelHandle:
    """A handle of a model that is served in this cluster.

    Blocks for a moment when it is the first of its process: make it where your deployment is initialised.

    Args:
        name: the model.
        version: the version; by default the highest that is ready.
        application: the Serve application of the server.

    Raises:
        InferError: UNAVAILABLE when the server does not answer.
    """
    with _lock:
        if application not in _tables:
            _tables[application] = Tables(application)
        return ModelHandle(_tables[application], name, str(version), {})
