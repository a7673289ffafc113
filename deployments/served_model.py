"""A loaded model version: backend, instances, scheduler and counters, behind one `submit`."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config_normalise import normalise
from app.core.config_validation import validate
from app.core.errors import ErrorCode, InferError
from app.core.request_check import RequestChecker
from app.core.tensors import InferRequest, InferResponse, Timestamps
from app.transport.loop import LoopThread
from app.transport.regions import read_inputs, write_outputs
from backends import find_backend
from backends.base import Backend, Instance, Model
from deployments.instances import InstanceThread
from deployments.latencies import Histogram, Latencies
from deployments.repository.layout import ModelEntry, read_labels
from deployments.response_cache import CachedScheduler, make_cache
from deployments.scheduling.base import Scheduler
from deployments.scheduling.configured import dynamic_scheduler
from deployments.scheduling.direct import DirectScheduler
from deployments.scheduling.dynamic import MakeBatched, serve_batched
from deployments.scheduling.pending import Outbox, Pending, Sink
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.sequence import SequenceScheduler
from deployments.scheduling.turn import turn_kind
from deployments.spec import ModelSpec
from deployments.statistics import Statistics

logger = logging.getLogger(__name__)


class ServedModel:
    """What a replica serves. `load` runs on the calling thread; everything else on the data-plane loop."""

    def __init__(
        self, spec: ModelSpec, model: Model, backend: Backend, plane: LoopThread, batched: MakeBatched
    ) -> None:
        self._spec = spec
        self._backend = backend
        self._model = model
        self._version = str(model.version)
        self._outbox = Outbox(plane.loop, self._deliver)
        self._checker = RequestChecker(model.config)
        self._shapes = ShapeKey(model.config)
        self._kind = turn_kind(model.config) if model.config.HasField("sequence_batching") else Pending
        self._live: set[Pending] = set()
        latencies = Latencies() if spec.summaries else None
        self.statistics = Statistics(model.name, str(model.version), latencies)
        self._first_responses = _first_responses(model.config) if spec.histograms else None
        self._awaited: set[Pending] = set()  # those whose first response is to be timed
        instances = _instances(model)
        self._scheduler = _scheduler(model, self.statistics, spec, len(instances), batched)
        self._cached = _cached(model, spec, self._scheduler, self.statistics)
        self._instances = [
            InstanceThread(
                backend,
                instance,
                self._outbox,
                model.config.model_transaction_policy.decoupled,
                plane.loop,
                self._scheduler.finished,
                len(instances) == 1,
            )
            for instance in instances
        ]

    @classmethod
    def load(cls, spec: ModelSpec, plane: LoopThread, batched: MakeBatched = serve_batched) -> "ServedModel":
        """Complete the configuration, load every instance and warm it up.

        Args:
            spec: what to load.
            plane: the thread whose loop requests will come on.
            batched: makes the batched form of an executor; `@serve.batch` works inside a replica only.

        Raises:
            InferError: why the model cannot be served.
        """
        declared = mc.ModelConfig.FromString(spec.config)
        kind = find_backend(
            declared.backend, Path(spec.backend_directory) if spec.backend_directory else None
        )
        settings = {**spec.backend_config.get("", {}), **spec.backend_config.get(declared.backend, {})}
        model = Model(declared, spec.version, Path(spec.directory), settings)
        if spec.auto_complete:
            model.config = normalise(kind.auto_complete(model), spec.gpus)
        validate(model.config, spec.gpus)
        backend = kind()
        backend.initialize(settings)
        backend.model_initialize(model)
        served = cls(spec, model, backend, plane, batched)
        try:
            served._start()
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
        return all(thread.alive for thread in self._instances)

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
            self.statistics.record_failure(time.monotonic_ns() - arrival, error.reason)
            raise
        self._live.add(pending)
        pending.accepted = True
        if self._first_responses is not None:
            self._awaited.add(pending)
        return lambda: self._cancel(pending)

    async def control(self, verb: str, payload: Any) -> Any:
        """Answer a CONTROL frame: `statistics` gives counters of this replica."""
        if verb == "statistics":
            return {
                "statistics": self.statistics.message().SerializeToString(),
                "failures": {reason.value: n for reason, n in self.statistics.failures.items()},
                "pending": self._scheduler.pending,
                "releases": dict(self.statistics.releases),
                "queue_age_ns": self._scheduler.queue_age_ns,
                **self._distributions(),
            }
        raise InferError(ErrorCode.UNSUPPORTED, f"unknown control verb '{verb}'")

    def close(self, timeout: float) -> None:
        """Stop the instances and finalize the backend; on any thread but the loop's."""
        for thread in self._instances:
            thread.stop(timeout)
        try:
            self._scheduler.close()
            self._backend.model_finalize(self._model)
            self._backend.finalize()
        except Exception:
            logger.exception("finalizing model '%s'", self._model.name)

    def _start(self) -> None:
        for thread in self._instances:
            thread.start()
        for thread in self._instances:
            thread.wait_loaded()

    async def open(self) -> None:
        """Begin to execute what is submitted."""
        for thread in self._instances:
            if not thread.instance.passive:
                self._scheduler.add_instance(thread)

    def _distributions(self) -> dict[str, Any]:
        latencies, first = self.statistics.latencies, self._first_responses
        found: dict[str, Any] = {} if latencies is None else {"summaries": latencies.message()}
        return found if first is None else {**found, "first_response": first.message()}

    def _cancel(self, pending: Pending) -> None:
        pending.cancelled = True
        (self._cached or self._scheduler).cancel(pending)

    def _deliver(self, pending: Pending, response: InferResponse) -> None:
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
            )
        )

    def _account(self, pending: Pending, response: InferResponse) -> None:
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


_FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
_BOUNDS_MS = (100.0, 500.0, 2000.0, 5000.0)


def _first_responses(config: mc.ModelConfig) -> Histogram | None:
    """The histogram of a decoupled model's first responses; `model_metrics` may give its bounds."""
    if not config.model_transaction_policy.decoupled:
        return None
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == _FIRST_RESPONSE:
            return Histogram(tuple(control.histogram_options.buckets))
    return Histogram(_BOUNDS_MS)


def _timestamps(pending: Pending) -> Timestamps:
    """Of a request that is done; one that was refused, or is answered early, has not all of them."""
    arrival, dispatch = pending.arrival_ns, pending.dispatch_ns
    start, infer, output, end = pending.computed or (dispatch, 0, 0, 0)
    return Timestamps(arrival, arrival, start, infer, output, end, time.monotonic_ns())


class ShapeKey:
    """Tells which requests may share a batch: equal shapes but for the batch dimension, same inputs.

    Inputs with `allow_ragged_batch` may differ in shape. None for every request of a model whose
    configuration leaves no choice, which is the common case.
    """

    def __init__(self, config: mc.ModelConfig) -> None:
        self._ragged = frozenset(spec.name for spec in config.input if spec.allow_ragged_batch)
        self._fixed = all(
            not spec.optional and (spec.allow_ragged_batch or -1 not in spec.dims) for spec in config.input
        )

    def __call__(self, request: InferRequest) -> tuple[object, ...] | None:
        if self._fixed:
            return None
        if len(request.inputs) == 1 and not self._ragged:
            tensor = request.inputs[0]
            return (tensor.name, tensor.shape[1:])
        ragged = self._ragged
        return tuple(
            sorted(
                (tensor.name, () if tensor.name in ragged else tensor.shape[1:]) for tensor in request.inputs
            )
        )


def _instances(model: Model) -> list[Instance]:
    """Instances of this replica, named `<group>_<index>` as Triton does.

    A Python model is one instance a process; other backends run `count` threads per listed device.
    """
    found: list[Instance] = []
    for group in model.config.instance_group:
        kind = mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        devices = list(group.gpus) or [0]
        for device in devices:
            for index in range(group.count):
                name = f"{group.name}_{index}" if kind != "GPU" else f"{group.name}_{index}_gpu{device}"
                found.append(Instance(model, name, kind, device, len(found), group.passive))
    return found[:1] if model.config.backend == "python" else found


def _scheduler(
    model: Model, statistics: Statistics, spec: ModelSpec, instances: int, batched: MakeBatched
) -> Scheduler:
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
    return dynamic_scheduler(model, statistics, spec, instances, batched)
