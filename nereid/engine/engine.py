"""Nereid in one process, without Ray: loads models of repositories and answers requests of arrays.

    with Engine.open(model_repository="/models", model_control_mode="explicit") as engine:
        engine.load("resnet")
        outputs = engine.infer("resnet", {"input": images})      # {"output": array}
        future = engine.submit("resnet", {"input": images})      # a concurrent.futures.Future of the same
        for outputs in engine.stream("words", {"text": [b"hello"]}): ...

Configurations, auto-completion, versions, schedulers, ensembles, calls between models (BLS), sequences, the
response cache and statistics are those of the server. What needs a cluster is missing: several replicas of a
model, rollouts, and models on demand; a crash of a model is one of the process.

Every public method may be called from any thread but the engine's own, which answers the requests.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, cast

import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import invalid_arg
from app.core.files.private_files import private_root
from app.core.inference import Cancel, Sink
from app.core.tensors import (
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    SequenceId,
)
from app.cost.assembly import Place
from app.drift.reporter import DriftReporter
from app.drift.tap import DriftTap
from app.ingress.assembly import make_account, make_cost_tap, make_router, make_service, make_tape
from app.routing.handle_calls import Arrays, arrays
from app.routing.manager_client import ManagerClient
from app.routing.table import RoutingTable, VersionEntry
from app.routing.targets import Tap, in_turn
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from app.transport.loops.thread import LoopThread, freeze_heap
from backends.python.api import server_api
from deployments.bls.service import Connection
from nereid.engine.arrays import only, settle, tensor_of
from nereid.engine.calls import LocalCalls
from nereid.engine.local_channel import HERE
from nereid.engine.local_replica import LocalApplications
from nereid.engine.local_routing import LocalPools
from nereid.engine.repository import LocalRepository
from nereid.engine.sent import Received, SentRequest, Waiting

_DRIFT_S: Final = 1.0
"""From one look for references to the next: nothing is sent to another process for it."""


class Engine:
    """Models served in this process.

    A process has one engine at a time whose Python models call other models.

    Args:
        settings: as of a server; those of its cluster and its fronts are not used.
        lends_loop: threads that wait for a response do the engine's work while its own thread is idle.
            Fronts, and calls that do not wait, are faster without.
        tap: sees every request and its answer, instead of the tape of the settings.

    Attributes:
        settings: these settings.
        plane: the thread that answers requests.
        service: the interface under the fronts; used on the thread's loop.
        repository: loads and unloads; used on the thread's loop.
        connection: for calls between models.
        tape: records requests; None without `--tape`.
        drift: tells the repository what was counted of models.
        cost: tells it what was consumed; None with `--cost=false`.
    """

    def __init__(self, settings: ServerSettings, lends_loop: bool = True, tap: Tap | None = None) -> None:
        self.settings = settings
        self.tape = None if tap is not None else make_tape(settings, secrets.token_bytes(32))
        self._tap = tap if self.tape is None else self.tape.tap
        self.plane = LoopThread("engine", borrowable=lends_loop)
        self._waiting = Waiting()
        self.plane.call(self._compose())
        self._closed = False

    @classmethod
    def open(cls, **flags: object) -> "Engine":
        """Start an engine by tritonserver's flags with underscores, and load the models of the start.

        A model that cannot be loaded is listed by `index` with the reason; the others are served.

        Raises:
            SettingsError: an unknown or contradictory setting, in one line.
            InferError: a repository cannot be read.
        """
        engine = cls(from_args(flags))
        try:
            engine.start()
        except BaseException:
            engine.close()
            raise
        return engine

    async def _compose(self) -> None:
        settings = self.settings
        self._applications = LocalApplications(self.plane, settings.server.exit_timeout_s)
        pools = LocalPools(self._applications.replicas, settings.cluster.transport)
        watched = DriftTap()
        counted = make_cost_tap(settings)
        self._router = make_router(settings, pools, tap=in_turn(watched, self._tap, counted))
        self.repository = LocalRepository(settings, self._applications, self._router)
        place = Place("engine", HERE)
        self.cost = make_account(settings, place, self._router, self.repository.report_cost, counted)
        self.drift = DriftReporter(
            watched, self.repository.report_drift, "engine", self._router.tap_anew, _DRIFT_S
        )
        regions = os.path.join(private_root(), f"regions-{secrets.token_hex(8)}")
        self.service = make_service(settings, self._router, self.repository, regions, self.tape)
        self.connection = Connection(self._router, cast(ManagerClient, self.repository))
        self._calls = LocalCalls(self.plane, self.connection)

    def start(self) -> None:
        """Load the models of the start. Blocks.

        Raises:
            InferError: a repository cannot be read.
        """
        server_api.install(self._calls)
        self.plane.call(self._begin())

    async def _begin(self) -> None:
        await self.repository.start()
        self.repository.begin(self.drift.run())
        if self.cost is not None:
            self.repository.begin(self.cost.run())

    def own_process(self) -> None:
        """Collect garbage every few seconds, among what is made from now on: nothing else lives here."""
        freeze_heap()  # or each collection stops requests for 50 ms
        self.plane.schedule_gc()

    def close(self) -> None:
        """Answer the requests in flight, unload every model and end the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.service.begin_exit()
        self.plane.call(self._close())
        if server_api.current() is self._calls:
            server_api.install(server_api.NoServerApi())
        self.plane.stop()

    async def _close(self) -> None:
        await self._applications.close()
        await self.repository.close()
        await self._router.close(1.0)
        self.service.shared_memory.close()
        if self.tape is not None:
            await asyncio.to_thread(self.tape.close)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model; needs `model_control_mode` explicit. Blocks.

        Args:
            name: the model.
            config: a configuration as JSON instead of the one on disk.
            files: files by path (`1/model.onnx`) instead of those on disk; they need a `config`.

        Raises:
            InferError: the load failed; versions that were served still are.
        """
        self.plane.call(self.service.load_model(name, config, files or {}))

    def unload(self, name: str, dependents: bool = False) -> None:
        """Unload a model, with `dependents` also those loaded only for it. Blocks until it is unloaded."""
        self.plane.call(self.service.unload_model(name, dependents))

    def index(self, ready: bool = False) -> list[tuple[str, str, str, str]]:
        """Return name, version, state and reason of every version, and names of models never loaded."""
        found = self.plane.call(self.service.repository_index(ready))
        return [(model.name, model.version, model.state, model.reason) for model in found.models]

    def ready(self, name: str, version: str = "") -> bool:
        """Return whether a model could be called; raise `InferError` (NOT_FOUND) for an unknown one."""
        ready: bool = self.on_loop(lambda: self.service.model_ready(name, version))
        return ready

    def config(self, name: str, version: str = "") -> mc.ModelConfig:
        """Return the complete configuration of a model; raise `InferError` if it is not served."""
        return self._router.resolve(name, version).model_config

    def labels(self, name: str, version: str = "") -> Mapping[str, Sequence[str]]:
        """Return the labels of classes by output; raise `InferError` if it is not served."""
        return self._router.resolve(name, version).labels

    def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        """Return the counters of a model, or of all; raise `InferError` if it is not served."""
        return self.plane.call(self.service.statistics(name, version))

    def infer(self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> Arrays:
        """Make one request and wait for its response; see `request` for the options.

        Returns:
            The outputs by name, BYTES as object arrays of `bytes`; {} for a decoupled model that sends none.

        Raises:
            InferError: the request failed, with the code and text of the server.
        """
        responses: SimpleQueue[InferResponse] = SimpleQueue()
        self.send(self.request(model, inputs, **options), responses.put, waits=True)
        return arrays(only(partial(self.next, responses)))

    def submit(self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> "Future[Arrays]":
        """As `infer`, but return a future at once; cancelling it cancels the request."""
        future: Future[Arrays] = Future()
        received: list[InferResponse] = []

        def receive(response: InferResponse) -> None:
            received.append(response)
            if response.final and future.set_running_or_notify_cancel():
                settle(future, received)

        cancel = self.send(self.request(model, inputs, **options), receive)
        future.add_done_callback(lambda done: cancel() if done.cancelled() else None)
        return future

    def stream(self, model: str, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> Iterator[Arrays]:
        """Make a request of a model with any number of responses; leaving the iterator cancels it.

        Raises:
            InferError: from the iterator; the request failed.
        """
        received = Received()
        received.cancel = self.send(self.request(model, inputs, **options), received.receive)
        final = False
        try:
            while not final:
                response = received.next()
                final = response.final
                if not response.is_end_of_stream:
                    yield arrays(response)
        finally:
            if not final:
                received.cancel()

    def request(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        parameters: Parameters | None = None,
        request_id: str = "",
        sequence_id: SequenceId = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> InferRequest:
        """Make a request of arrays.

        Args:
            model: its name.
            inputs: arrays by input name, batch dimension included; strings or bytes for BYTES, uint16 bit
                patterns for BF16. Large arrays are not copied: they must not change until the response.
            version: the version; "" for the one that the version policy chooses.
            outputs: names of the requested outputs; all of them by default.
            parameters: custom parameters.
            request_id: the request's id in logs and traces.
            sequence_id: of a stateful model, with `sequence_start` and `sequence_end`.
            priority: as in Triton's schedule policy.
            timeout_us: the time in the queue after which the request fails, in microseconds.

        Raises:
            InferError: the model is not served.
        """
        known = self._router.resolve(model, version).inputs
        tensors = tuple([tensor_of(name, value, known.get(name)) for name, value in inputs.items()])
        wanted = tuple([RequestedOutput(name) for name in outputs])
        sequence = (sequence_id, sequence_start, sequence_end)
        about = (request_id, parameters or {}, *sequence, priority, timeout_us)
        return InferRequest(model, version, tensors, wanted, *about)

    def send(self, request: InferRequest, sink: Sink, waits: bool = False) -> Cancel:
        """Send a request; return the function that cancels it.

        Args:
            request: the request.
            sink: gets every response; the last one is final, and always comes. It is called on the engine's
                thread, or another one in its place.
            waits: the caller has nothing else to do until then: what is short may be done by its thread.
        """
        sent = SentRequest(self.service, request, sink)
        self.plane.run_soon(sent.start, here=waits and self._waiting.may_call_here())
        return partial(self._cancel, sent)

    def next(self, responses: "SimpleQueue[InferResponse]") -> InferResponse:
        """Wait for the next response of a request that was sent; `responses.put` is its sink."""
        return self._waiting.next(responses)

    def execute_together(
        self, model: str, requests: Sequence[InferRequest]
    ) -> "list[SimpleQueue[InferResponse]]":
        """Execute requests of a model in one batch, at once; return the queues of their responses.

        Raises:
            InferError: see `ServedModel.execute_together`; INVALID_ARG for an ensemble.
        """
        replica = self._applications.replicas.get(self.entry(model).application)
        if replica is None:
            raise invalid_arg(f"model '{model}' executes no batches of its own")
        queues: list[SimpleQueue[InferResponse]] = [SimpleQueue() for _ in requests]
        given = [(request, queue.put) for request, queue in zip(requests, queues, strict=True)]
        self.on_loop(lambda: replica.served.execute_together(given))
        return queues

    @property
    def table(self) -> RoutingTable:
        """The present routing table."""
        return self._router.table

    def _cancel(self, sent: SentRequest, advice: bool = False) -> None:
        self.plane.loop.call_soon_threadsafe(sent.cancel, advice)

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Return the result of a function that is to run on the engine's thread."""

        async def work() -> Any:
            return call()

        return self.plane.call(work())

    def entry(self, name: str, version: str = "") -> VersionEntry:
        """Return the version that would answer a request; raise `InferError` if there is none."""
        return self._router.resolve(name, version)
