"""A loaded model version: backend, instances, scheduler and counters, behind one `submit`."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.cache.response_cache import make_cache
from app.core.buffers import set_allocator
from app.core.config.normalise import normalise
from app.core.config.validation import validate, validate_instances
from app.core.errors import ErrorCode, FailureReason, InferError, internal
from app.core.inference import Sink
from app.core.latencies import Latencies, distributions, first_responses
from app.core.log import LogConfig, configure_logging
from app.core.request_check import RequestChecker
from app.core.tensors import InferRequest, InferResponse, Timestamps, TracedCall
from app.transport.event_loop_thread import LoopThread
from app.transport.memory.client_regions import read_inputs, write_outputs
from app.transport.memory.shared_pool import take
from backends import find_backend, python_based_file
from backends.base import Backend, Model
from deployments.environments.prepare import Environment, prepare
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.execution.statistics import Statistics
from deployments.model_store.agents import check_agents
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels
from deployments.replica.cached_scheduler import CachedScheduler
from deployments.replica.instance_pool import InstancePool
from deployments.replica.readiness import ReadinessWatch
from deployments.scheduling.base import Scheduler
from deployments.scheduling.direct import DirectScheduler
from deployments.scheduling.dynamic.configured import dynamic_scheduler
from deployments.scheduling.dynamic.scheduler import MakeBatched, serve_batched
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.sequence.requests import turn_kind
from deployments.scheduling.sequence.scheduler import SequenceScheduler
from deployments.scheduling.shape_key import ShapeKey
from deployments.spec import UPDATE, ModelSpec

logger = logging.getLogger(__name__)


class ServedModel:
    """What a replica serves. `load` runs on the calling thread; everything else on the data-plane loop."""

    def __init__(
        self,
        spec: ModelSpec,
        model: Model,
        backend: Backend,
        plane: LoopThread,
        batched: MakeBatched,
        rank: int,
    ) -> None:
        self._spec = spec
        self.declared = spec.config
        """The configuration as the manager gave it last."""
        self._backend = backend
        self._model = model
        self._version = str(model.version)
        self._outbox = ResponseQueue(plane.loop, self._deliver)
        self._checker = RequestChecker(model.config)
        self._shapes = ShapeKey(model.config)
        self._kind = turn_kind(model.config) if model.config.HasField("sequence_batching") else QueuedRequest
        self._environment = Environment()
        self._live: set[QueuedRequest] = set()
        self.ensembles: Callable[[], list[Any]] = list
        """Counters of the ensembles that this model's calls have run here."""
        latencies = Latencies() if spec.summaries else None
        self.statistics = Statistics(model.name, str(model.version), latencies)
        decoupled = model.config.model_transaction_policy.decoupled
        self._first_responses = first_responses(model.config) if spec.histograms and decoupled else None
        self._awaited: set[QueuedRequest] = set()  # those whose first response is to be timed
        self._scheduler = _scheduler(model, self.statistics, spec, batched)
        self._cached = _cached(model, spec, self._scheduler, self.statistics)
        self._instances = InstancePool(spec, model, backend, self._outbox, plane, self._scheduler, rank)

    @classmethod
    def load(
        cls, spec: ModelSpec, plane: LoopThread, batched: MakeBatched = serve_batched, rank: int = 0
    ) -> "ServedModel":
        """Complete the configuration, load every instance and warm it up.

        Args:
            spec: what to load.
            plane: the thread whose loop requests will come on.
            batched: makes the batched form of an executor; `@serve.batch` works inside a replica only.
            rank: the position of this replica among those of its model.

        Raises:
            InferError: why the model cannot be served.
        """
        declared = mc.ModelConfig.FromString(spec.config)
        check_agents(declared, Path(spec.directory), spec.version)
        kind = find_backend(declared.backend, spec.backend_path)
        common_file = python_based_file(declared.backend, spec.backend_path)
        settings = spec.settings(declared.backend, *(("python",) if common_file else ()))
        model = Model(declared, spec.version, Path(spec.directory), settings)
        model.common_file = common_file
        environment = prepare(model, spec.cache_bytes)
        model.interpreter = environment.python
        try:
            return cls._load(spec, model, kind, environment, plane, batched, rank)
        except InferError as error:
            environment.release()
            raise environment.explained(error) from error

    @classmethod
    def _load(
        cls,
        spec: ModelSpec,
        model: Model,
        kind: type[Backend],
        environment: Environment,
        plane: LoopThread,
        batched: MakeBatched,
        rank: int,
    ) -> "ServedModel":
        set_allocator(take)
        if spec.auto_complete:
            model.config = normalise(kind.auto_complete(model), spec.gpus)
        validate(model.config, spec.gpus)
        backend = kind()
        backend.initialize(model.backend_config)
        backend.model_initialize(model)
        served = cls(spec, model, backend, plane, batched, rank)
        served._environment = environment
        try:
            served._instances.load()
        except BaseException:
            served.close(timeout=5)
            raise
        return served

    @property
    def config(self) -> mc.ModelConfig:
        """The complete configuration."""
        return self._model.config

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Class labels by output, from the label files of the configuration."""
        directory = self._model.directory.resolve()
        return read_labels(ModelEntry(self._model.name, directory.parent, directory), self.config)

    @property
    def outstanding(self) -> int:
        """Requests taken and not finally answered."""
        return len(self._live)

    @property
    def healthy(self) -> bool:
        """Whether every instance can still take batches."""
        return self._instances.healthy

    def submit(self, request: InferRequest, sink: Sink) -> Callable[[], None]:
        """Validate and queue a request; returns what cancels it.

        Raises:
            InferError: INVALID_ARG for what the configuration forbids, UNAVAILABLE when the queue is full.
        """
        arrival = time.monotonic_ns()
        try:
            if request.regions:
                request = read_inputs(request)
            rows = self._checker.check(request)
            pending = self._kind(request, sink, self._outbox, rows, self._shapes(request))
            (self._cached or self._scheduler).submit(pending)
        except InferError as error:
            # As in Triton, what the client did wrong is no failure of the model.
            if error.reason is not FailureReason.OTHER:
                self.statistics.record_failure(time.monotonic_ns() - arrival, error.reason)
            raise
        self._live.add(pending)
        pending.accepted = True
        if self._first_responses is not None:
            self._awaited.add(pending)
        return lambda: self._cancel(pending)

    async def control(self, verb: str, payload: Any) -> Any:
        """Answer a CONTROL frame.

        `statistics` gives counters of this replica, `ensembles` those of the ensembles that its calls ran,
        `update` changes instances, `log` what is logged.

        Raises:
            InferError: an unknown verb, or what `update` raises.
        """
        if verb == "log":
            configure_logging(msgspec.convert(payload, LogConfig))
            return None
        if verb == "statistics":
            return {
                "statistics": self.statistics.message().SerializeToString(),
                "failures": {reason.value: n for reason, n in self.statistics.failures.items()},
                "pending": self._scheduler.pending,
                "releases": dict(self.statistics.releases),
                "queue_age_ns": self._scheduler.queue_age_ns,
                **distributions(self.statistics.latencies, self._first_responses, self._cached is not None),
                **await self._custom_metrics(),
            }
        if verb == UPDATE:
            return await asyncio.to_thread(self.update, payload)
        if verb == "ensembles":
            return self.ensembles()
        raise InferError(ErrorCode.UNSUPPORTED, f"unknown control verb '{verb}'")

    def update(self, config: bytes) -> None:
        """Follow a change of the instance groups, the only one. Blocks; not to be called on the loop.

        Args:
            config: the serialised configuration, as in `ModelSpec`.

        Raises:
            InferError: why not; then all is as it was.
        """
        declared = mc.ModelConfig.FromString(config)
        wanted = mc.ModelConfig()
        wanted.CopyFrom(self.config)
        del wanted.instance_group[:]
        wanted.instance_group.extend(declared.instance_group)
        wanted = normalise(wanted, self._spec.gpus)
        validate_instances(wanted, self._spec.gpus)
        try:
            self._instances.update(wanted)
        except InferError:
            raise
        except Exception as error:
            logger.exception("updating the instances of model '%s'", self._model.name)
            raise internal(f"{type(error).__name__}: {error}") from error
        self.declared = config

    def close(self, timeout: float) -> None:
        """Stop the instances and finalize the backend; on any thread but the loop's."""
        self._instances.close(timeout)
        try:
            self._scheduler.close()
            self._backend.model_finalize(self._model)
            self._backend.finalize()
        except Exception:
            logger.exception("finalizing model '%s'", self._model.name)
        self._environment.release()

    def watch_readiness(self, announce: Callable[[bool], None]) -> ReadinessWatch:
        """What tells of the model's readiness; see `ReadinessWatch`."""
        return ReadinessWatch(self._backend, lambda: self._instances.instances, announce)

    async def open(self) -> None:
        """Begin to execute what is submitted."""
        await self._instances.open()

    async def _custom_metrics(self) -> dict[str, Any]:
        if type(self._backend).metrics is Backend.metrics:
            return {}
        # A model in a process of its own may take its time to answer.
        return {"custom": await asyncio.get_running_loop().run_in_executor(None, self._backend.metrics)}

    def _cancel(self, pending: QueuedRequest) -> None:
        pending.cancelled = True
        if pending.nested is not None:
            pending.nested.cancel()
        (self._cached or self._scheduler).cancel(pending)
        self._instances.cancel(pending)

    def _deliver(self, pending: QueuedRequest, response: InferResponse) -> None:
        if pending not in self._live:  # two threads of a backend have finished it at the same moment
            return
        if self._awaited and pending in self._awaited:
            self._awaited.discard(pending)
            if self._first_responses is not None and response.error is None:
                self._first_responses.add(time.monotonic_ns() - pending.arrival_ns)
        if self._cached is not None and response.final:
            self._cached.finished(pending, response)
        # Who gave up on the request may use its memory for something else by now.
        if pending.infer.regions and not pending.cancelled:
            response = write_outputs(pending.infer, response)
        if response.final:
            self._live.discard(pending)
            self._account(pending, response)
        infer = pending.infer
        pending.sink(
            InferResponse(
                self._model.name,
                self._version,
                response.outputs,
                infer.id,
                response.parameters,
                response.final,
                response.error,
                _timestamps(pending) if infer.trace and response.final else None,
                () if pending.nested is None else _calls(pending, response),
            )
        )

    def _account(self, pending: QueuedRequest, response: InferResponse) -> None:
        now = time.monotonic_ns()
        if response.error is None:
            self.statistics.record_success(now - pending.arrival_ns, pending.dispatch_ns - pending.arrival_ns)
        else:
            self.statistics.record_failure(now - pending.arrival_ns, response.error.reason)


def _cached(
    model: Model, spec: ModelSpec, scheduler: Scheduler, statistics: Statistics
) -> CachedScheduler | None:
    if not model.config.response_cache.enable:
        return None
    cache = make_cache(spec.cache_config)
    if cache is None:
        logger.warning(
            "model '%s' enables the response cache, but the server has none: see --cache-config", model.name
        )
        return None
    return CachedScheduler(cache, scheduler, statistics, model.name, str(model.version), spec.fingerprint)


def _calls(pending: QueuedRequest, response: InferResponse) -> tuple[TracedCall, ...]:
    """The calls to other models that a traced request has led to, for its final response."""
    return tuple(pending.nested.traced.ended) if pending.infer.trace and response.final else ()


def _timestamps(pending: QueuedRequest) -> Timestamps:
    """Of a request that is done; one that was refused, or is answered early, has not all of them."""
    arrival, dispatch = pending.arrival_ns, pending.dispatch_ns
    start, infer, output, end = pending.computed or (dispatch, 0, 0, 0)
    activities = () if pending.nested is None else tuple(pending.nested.activities)
    return Timestamps(arrival, arrival, start, infer, output, end, time.monotonic_ns(), activities)


def _scheduler(model: Model, statistics: Statistics, spec: ModelSpec, batched: MakeBatched) -> Scheduler:
    config = model.config
    choice = config.WhichOneof("scheduling_choice")
    if choice == "sequence_batching":
        return SequenceScheduler(
            statistics, config, model.directory, spec.max_pending_requests, spec.max_pending_bytes
        )
    if choice == "ensemble_scheduling":
        raise InferError(
            ErrorCode.UNSUPPORTED, f"model '{config.name}': {choice} is not available in this release"
        )
    if choice != "dynamic_batching" or config.max_batch_size < 2:
        return DirectScheduler(statistics, RequestQueue(spec.max_pending_requests, spec.max_pending_bytes))
    return dynamic_scheduler(model, statistics, spec, batched)
