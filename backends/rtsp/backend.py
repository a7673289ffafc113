"""The backend `rtsp`: the frames of a camera or a file as the responses of one request, decoded by FFmpeg."""

import threading
from collections.abc import Sequence
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal, invalid_arg, unavailable
from app.core.tensors import failed
from backends.array_backend import backend_failure
from backends.base import Backend, Instance, Model, Request
from backends.declared import complete_tensors
from backends.rtsp.settings import Settings, read_request, read_settings
from backends.rtsp.stream import Counters, Stream

INPUTS: Final = {
    "URL": (mc.TYPE_STRING, [1]),
    "FRAMES": (mc.TYPE_INT32, [1]),
    "FPS": (mc.TYPE_FP32, [1]),
    "SIZE": (mc.TYPE_INT32, [2]),
    "TRANSPORT": (mc.TYPE_STRING, [1]),
}
OUTPUTS: Final = {
    "FRAME": (mc.TYPE_UINT8, [-1, -1, 3]),
    "PTS": (mc.TYPE_INT64, [1]),
    "INDEX": (mc.TYPE_INT64, [1]),
}
_REQUIRED: Final = ("URL",)
_HELP: Final = {
    "frames_sent": "Frames that streams have sent",
    "frames_dropped": "Frames of live streams that were dropped because their clients read too slowly",
    "reconnects": "Attempts to open a live source again",
}


class _State:
    """The streams of a model."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters()
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()

    @property
    def streams(self) -> list[Stream]:
        """The streams open now."""
        with self._lock:
            return list(self._streams)

    def admit(self, stream: Stream) -> None:
        """Count a stream.

        Raises:
            InferError: UNAVAILABLE when there are as many as there may be.
        """
        with self._lock:
            if len(self._streams) >= self.settings.max_streams:
                raise unavailable(f"the model has {len(self._streams)} streams open already (max_streams)")
            self._streams.add(stream)

    def release(self, stream: Stream) -> None:
        """Count a stream no more."""
        with self._lock:
            self._streams.discard(stream)


class RtspBackend(Backend):
    """Sends the frames of each request's URL, on threads of that stream."""

    def __init__(self) -> None:
        self._models: dict[Model, _State] = {}

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        config = model.config
        complete_tensors(config, INPUTS, OUTPUTS, required=_REQUIRED)
        config.model_transaction_policy.decoupled = True
        return config

    def model_initialize(self, model: Model) -> None:
        config = model.config
        if not config.model_transaction_policy.decoupled:
            raise invalid_arg("'rtsp' backend expects a model with the decoupled transaction policy")
        if config.max_batch_size:
            raise invalid_arg("'rtsp' backend does not batch: max_batch_size must be 0")
        model.state = self._models[model] = _State(read_settings(model))

    def model_finalize(self, model: Model) -> None:
        state = self._models.pop(model, None)
        for stream in state.streams if state else ():
            stream.stop(unavailable(f"model '{model.name}' was unloaded"))
            stream.join(timeout=5)

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise invalid_arg("'rtsp' backend only supports CPU instances")

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        state: _State = instance.model.state
        for request in requests:
            try:
                _start(instance.model, state, request)
            except Exception as error:
                request.deliver(failed(backend_failure(error), request.infer.id))

    def metrics(self) -> list[Any]:
        families = []
        models = list(self._models.items())
        for name, text in _HELP.items():
            families.append([f"rtsp_{name}", text, "counter", _samples(models, name)])
        samples = [[_labels(model), float(len(state.streams)), 0, [], []] for model, state in models]
        families.append(["rtsp_streams", "Streams open now", "gauge", samples])
        return families if models else []


def _start(model: Model, state: _State, request: Request) -> None:
    settings = state.settings
    wanted = read_request(settings, request.infer)
    stream = Stream(model, request, settings, wanted, state.counters, state.release)
    state.admit(stream)
    request.detached = True
    try:
        stream.start()
    except RuntimeError as error:  # no more threads
        state.release(stream)
        raise internal(f"no thread for the stream: {error}") from error


def _labels(model: Model) -> dict[str, str]:
    return {"model": model.name, "version": model.version_text}


def _samples(models: Sequence[tuple[Model, _State]], name: str) -> list[Any]:
    return [[_labels(model), float(state.counters.values[name]), 0, [], []] for model, state in models]
