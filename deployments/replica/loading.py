"""Loads a model version: completes and validates its configuration, then makes everything that serves it."""

import logging
from functools import partial
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc

from app.cache.response_cache import make_cache
from app.core.buffers import set_allocator
from app.core.chat_templates import TextFacts
from app.core.errors import InferError
from app.core.installed.installation import SERVER_PYTHON
from app.core.observability.latencies import unknown_families
from app.core.observability.statistics import Statistics
from app.core.system.main_thread import call_on_main
from app.transport.loops.thread import LoopThread
from app.transport.memory.shared_pool import allocate
from backends.base import Backend, Model
from backends.registry.configuration import normalise, validate
from backends.registry.loading import find_backend, hosted_backend, runs_elsewhere
from backends.registry.place import BackendPlace
from deployments.environments.prepare import Environment, chosen, prepare
from deployments.execution.instance_groups import placements
from deployments.model_store.agents import check_agents
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels
from deployments.model_store.text_facts import read_text_facts
from deployments.model_store.version_file import read_version_file, refuse_processor
from deployments.parameters import MAX_REPLICAS
from deployments.replica.cached_scheduler import CachedScheduler
from deployments.replica.compiled_requests import compiled_requests
from deployments.replica.instance_pool import InstancePool
from deployments.replica.load import LoadStatistics
from deployments.replica.served_model import ServedModel
from deployments.scheduling.base import Scheduler
from deployments.scheduling.dynamic.serve_batch import MakeBatched, serve_batched
from deployments.scheduling.registry import make_scheduler
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)


def load_model(spec: ModelSpec, plane: LoopThread, batched: MakeBatched = serve_batched) -> ServedModel:
    """Complete the configuration, load every instance and warm it up. Blocks.

    Args:
        spec: the model version.
        plane: the thread whose loop requests will arrive on.
        batched: makes the batched form of an executor; `@serve.batch` works inside a replica only.

    Raises:
        InferError: the model cannot be served.
    """
    declared = mc.ModelConfig.FromString(spec.config)
    check_agents(declared, Path(spec.directory), spec.version)
    files = Path(spec.directory) / str(spec.version)
    refuse_processor(files, spec.name, spec.version, declared.backend)
    if spec.origin and (own := read_version_file(files, declared.backend)) is not None:
        declared = own.config.of(declared)  # the manager sees no content of files that are elsewhere
    place = BackendPlace.of(declared, spec.server.backends.path, spec.model_folders)
    common_file = place.python_file
    elsewhere = runs_elsewhere(place, spec.server.backends.settings(declared.backend))
    kind = hosted_backend(declared.backend) if elsewhere else find_backend(place)
    settings = spec.server.backends.settings(
        declared.backend, *(("python",) if common_file or elsewhere else ())
    )
    declared = normalise(declared, spec.gpus, kind.preferred_groups(settings, spec.server.auto_complete))
    model = Model(declared, spec.version, Path(spec.directory), settings)
    model.common_file = common_file
    environment = chosen(model) if elsewhere else prepare(model, spec.server.cache_bytes)
    if environment.unlike:
        logger.warning("%s", environment.unlike)
    model.interpreter = environment.python or (SERVER_PYTHON if len(placements(declared)) > 1 else None)
    try:
        backend = _initialize_backend(spec, model, kind)
        served = _serve(spec, model, backend, environment, plane, batched)
    except BaseException as error:
        environment.release()
        if isinstance(error, InferError):
            raise environment.explain(error) from error
        raise
    return served


def labels_of(model: Model) -> dict[str, tuple[str, ...]]:
    """Read the class labels by output from the label files of the configuration.

    Raises:
        InferError: see `read_labels`.
    """
    return read_labels(ModelEntry(model.name, model.directory.parent, model.directory), model.config)


def text_of(model: Model) -> TextFacts:
    """Read what ingresses are to know of a text model.

    Raises:
        InferError: see `read_text_facts`.
    """
    return read_text_facts(model.directory, model.version, model.config)


def _initialize_backend(spec: ModelSpec, model: Model, kind: type[Backend]) -> Backend:
    set_allocator(allocate)
    if spec.server.auto_complete:
        model.config = normalise(call_on_main(partial(kind.auto_complete, model)), spec.gpus)
    validate(model.config, spec.gpus)
    for family in unknown_families(model.config):
        logger.warning(
            "Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.", family
        )
    backend = kind()
    backend.initialize(model.backend_config)
    backend.model_initialize(model)
    return backend


def _serve(
    spec: ModelSpec,
    model: Model,
    backend: Backend,
    environment: Environment,
    plane: LoopThread,
    batched: MakeBatched,
) -> ServedModel:
    counting = LoadStatistics if MAX_REPLICAS in model.config.parameters else Statistics
    metrics = spec.server.metrics
    statistics = counting.for_model(model.config, metrics.summaries, metrics.histograms)
    scheduler = make_scheduler(model, spec, statistics, batched)
    served = ServedModel(
        model,
        backend,
        environment,
        statistics,
        scheduler,
        _make_cached(model, spec, scheduler, statistics),
        plane.loop,
        partial(InstancePool, spec, model, backend, plane, scheduler),
        compiled_requests(spec.server.transport, model.config, str(model.version)),
    )
    try:
        served.instances.load()
    except BaseException:
        served.close(timeout=5)
        raise
    return served


def _make_cached(
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
