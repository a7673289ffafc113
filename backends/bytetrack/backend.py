"""The backend `bytetrack`: follows objects from frame to frame; a sequence of requests is a camera."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import dims_text
from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse, SequenceId, Tensor, failed
from backends.array_backend import backend_failure
from backends.base import Backend, Instance, Model, Request
from backends.bytetrack.tracker import Parameters, Tracker
from backends.declared import check_tensors, complete_tensors
from backends.parameters import positive

INPUTS: Final = {
    "BOXES": (mc.TYPE_FP32, [-1, 4]),
    "SCORES": (mc.TYPE_FP32, [-1]),
    "CLASSES": (mc.TYPE_INT32, [-1]),
}
OUTPUTS: Final = {
    "TRACK_IDS": (mc.TYPE_INT64, [-1]),
    "TRACK_BOXES": (mc.TYPE_FP32, [-1, 4]),
    "TRACK_SCORES": (mc.TYPE_FP32, [-1]),
    "TRACK_CLASSES": (mc.TYPE_INT32, [-1]),
    "DETECTION_INDEX": (mc.TYPE_INT32, [-1]),
}
_REQUIRED: Final = ("BOXES", "SCORES")
_SEQUENCES: Final = 256
_IDLE_US: Final = 60_000_000


class _Settings(NamedTuple):
    tracking: Parameters
    max_detections: int


class _State(NamedTuple):
    """An instance's trackers by sequence; the scheduler bounds their number."""

    settings: _Settings
    trackers: dict[SequenceId, Tracker]


class ByteTrackBackend(Backend):
    """Gives boxes of a camera ids that stay the same from frame to frame."""

    begins_compute = True

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        config = model.config
        complete_tensors(config, INPUTS, OUTPUTS, _REQUIRED)
        if config.WhichOneof("scheduling_choice") is None:
            # Not "direct", which has a slot for each sequence and instance: one camera at a time.
            config.sequence_batching.oldest.max_candidate_sequences = _SEQUENCES
            config.sequence_batching.max_sequence_idle_microseconds = _IDLE_US
        return config

    def model_initialize(self, model: Model) -> None:
        config = model.config
        check_tensors(config, INPUTS, OUTPUTS, _REQUIRED)
        if not config.HasField("sequence_batching"):
            raise invalid_arg("'bytetrack' backend expects a model with sequence batching")
        if config.max_batch_size:
            raise invalid_arg(
                "'bytetrack' backend does not batch, as frames have different numbers of boxes:"
                " max_batch_size must be 0"
            )
        model.state = _Settings(_parameters(model), positive(model, "max_detections", 1000))

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise invalid_arg("'bytetrack' backend only supports CPU instances")
        instance.state = _State(instance.model.state, {})

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return True

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        state: _State = instance.state
        state.trackers.pop(sequence_id, None)

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        instance.begin_compute()
        for request in requests:
            try:
                response = _response(instance.model, instance.state, request.infer)
            except Exception as error:
                response = failed(backend_failure(error), request.infer.id)
            request.deliver(response)


def _response(model: Model, state: _State, infer: InferRequest) -> InferResponse:
    detections = _detections(infer, state.settings.max_detections)
    tracker = state.trackers.get(infer.sequence_id)
    if tracker is None or infer.sequence_start:
        tracker = state.trackers[infer.sequence_id] = Tracker(state.settings.tracking)
    tracked = tracker.update(*detections)
    names = [output.name for output in infer.outputs] or list(OUTPUTS)
    arrays: dict[str, npt.NDArray[Any]] = dict(zip(OUTPUTS, tracked, strict=True))
    outputs = tuple(Tensor.from_array(name, array) for name, array in arrays.items() if name in names)
    return InferResponse(model.name, model.version_text, outputs, infer.id)


def _detections(
    infer: InferRequest, limit: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """Return boxes, scores and classes; classes are 0 where there are none.

    Raises:
        InferError: INVALID_ARG for numbers of them that differ, too many, or values that are not finite.
    """
    arrays = {tensor.name: tensor.array() for tensor in infer.inputs}
    boxes, scores = arrays["BOXES"].astype(np.float64), arrays["SCORES"].astype(np.float64)
    classes = arrays.get("CLASSES", np.zeros(len(scores), np.int32))
    if not len(boxes) == len(scores) == len(classes):
        shapes = ", ".join(f"{name} {dims_text(array.shape)}" for name, array in arrays.items())
        raise invalid_arg(f"expected as many boxes as scores and classes, got {shapes}")
    if len(boxes) > limit:
        raise invalid_arg(f"{len(boxes)} boxes are more than the model's max_detections of {limit}")
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        raise invalid_arg("expected finite BOXES and SCORES")
    return boxes, scores, classes


def _parameters(model: Model) -> Parameters:
    """Read the parameters of the configuration; those of the authors are the defaults.

    Raises:
        InferError: INVALID_ARG for one that is no number, or not of its range.
    """
    values: dict[str, float | int] = {}
    for field in dataclasses.fields(Parameters):
        text = model.parameter(field.name)
        if text:
            values[field.name] = _number(field.name, text, 1 if "thresh" in field.name else 1_000_000)
    whole = {name: int(value) for name, value in values.items() if name in ("track_buffer", "max_tracks")}
    return Parameters(**(values | whole))  # type: ignore[arg-type]


def _number(name: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise invalid_arg(f"parameter '{name}': expected a number from 0 to {most:g}, got '{text}'")
    return value
