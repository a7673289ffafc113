from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from backends.base import Model
from backends.bytetrack.backend import ByteTrackBackend
from backends.registry.configuration import normalise, validate
from tests.unit.backend_harness import Served, config, infer


def completed(text: str = "", parameters: Mapping[str, str] | None = None) -> Model:
    """A model of the backend, its configuration completed."""
    given = config(f'name: "m" backend: "bytetrack" {text}')
    for name, value in (parameters or {}).items():
        given.parameters[name].string_value = value
    model = Model(given, 1, Path("nowhere"))
    model.config = ByteTrackBackend.auto_complete(model)
    return model


def served(parameters: Mapping[str, str] | None = None) -> Served:
    return Served(ByteTrackBackend, completed(parameters=parameters))


BOX = [[10.0, 10, 60, 110]]


def detections(boxes: Any = BOX, scores: Any = (0.9,), **fields: Any) -> Any:
    arrays = {"BOXES": np.array(boxes, np.float32).reshape(-1, 4), "SCORES": np.array(scores, np.float32)}
    classes = fields.pop("classes", None)
    if classes is not None:
        arrays["CLASSES"] = np.array(classes, np.int32)
    outputs = fields.pop("outputs", ())
    return infer(arrays, outputs, **({"sequence_id": 1} | fields))


def test_backend_alone_is_a_complete_configuration() -> None:
    model = completed()
    validate(normalise(model.config))
    tensors = [*model.config.input, *model.config.output]
    described = {t.name: (mc.DataType.Name(t.data_type), list(t.dims)) for t in tensors}
    assert described == {
        "BOXES": ("TYPE_FP32", [-1, 4]),
        "SCORES": ("TYPE_FP32", [-1]),
        "CLASSES": ("TYPE_INT32", [-1]),
        "TRACK_IDS": ("TYPE_INT64", [-1]),
        "TRACK_BOXES": ("TYPE_FP32", [-1, 4]),
        "TRACK_SCORES": ("TYPE_FP32", [-1]),
        "TRACK_CLASSES": ("TYPE_INT32", [-1]),
        "DETECTION_INDEX": ("TYPE_INT32", [-1]),
    }
    assert [t.name for t in model.config.input if t.optional] == ["CLASSES"]
    assert model.config.sequence_batching.HasField("oldest")


def test_a_scheduler_that_is_set_stays() -> None:
    assert completed("sequence_batching { direct {} }").config.sequence_batching.HasField("direct")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('input { name: "X" data_type: TYPE_FP32 dims: -1 }', "unexpected inference input 'X'"),
        ('input { name: "BOXES" data_type: TYPE_FP32 dims: [-1, 4] }', "input 'SCORES' is missing"),
        ('output { name: "TRACK_IDS" data_type: TYPE_INT32 dims: -1 }', "model provides TYPE_INT64"),
    ],
)
def test_tensors_that_the_backend_does_not_have_are_refused(text: str, error: str) -> None:
    with pytest.raises(InferError, match=error):
        completed(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [("dynamic_batching {}", "sequence batching"), ("max_batch_size: 4", "max_batch_size must be 0")],
)
def test_configurations_that_cannot_work_are_refused(text: str, error: str) -> None:
    with pytest.raises(InferError, match=error):
        Served(ByteTrackBackend, completed(text))


@pytest.mark.parametrize(
    ("name", "value"),
    [("track_thresh", "high"), ("match_thresh", "1.5"), ("frame_rate", "-1"), ("track_buffer", "nan")],
)
def test_parameters_that_are_no_numbers_of_their_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(InferError, match=f"parameter '{name}': expected a number from 0 to"):
        served({name: value})


def test_parameters_reach_the_tracker() -> None:
    model = served({"track_thresh": "0.2", "track_buffer": "5"})
    (call,) = model(detections(scores=[0.35]))
    assert call.arrays["TRACK_IDS"].tolist() == [1]


@pytest.mark.parametrize(("low_thresh", "expected"), [("0.1", [1]), ("0.4", [])])
def test_low_scores_above_the_threshold_continue_a_track(low_thresh: str, expected: list[int]) -> None:
    model = served({"low_thresh": low_thresh})
    model(detections(scores=[0.9]))
    (call,) = model(detections(scores=[0.3]))
    assert call.arrays["TRACK_IDS"].tolist() == expected


def test_a_sequence_is_a_camera() -> None:
    model = served()
    (first,) = model(detections(sequence_id=1, sequence_start=True))
    (other,) = model(
        detections([[500, 0, 550, 90], *BOX], [0.9, 0.8], sequence_id="two", sequence_start=True)
    )
    (again,) = model(detections(sequence_id=1, classes=[7]))
    assert first.arrays["TRACK_IDS"].tolist() == [1]
    assert other.arrays["TRACK_IDS"].tolist() == [1, 2]
    assert again.arrays["TRACK_IDS"].tolist() == [1]
    assert again.arrays["TRACK_CLASSES"].tolist() == [7]
    np.testing.assert_allclose(again.arrays["TRACK_BOXES"], BOX, atol=0.5)


def test_the_state_goes_with_the_sequence() -> None:
    model = served()
    model(detections(sequence_id=1))
    model(detections(sequence_id=2))
    model.backend.sequence_finalize(model.instance, 1)
    assert list(model.instance.state.trackers) == [2]


def test_start_forgets_a_sequence_of_the_same_id() -> None:
    model = served()
    model(detections([*BOX, [300, 0, 350, 90]], [0.9, 0.9]))
    (call,) = model(detections([[300, 0, 350, 90]], sequence_start=True))
    assert call.arrays["TRACK_IDS"].tolist() == [1]


def test_frames_without_boxes_have_no_tracks() -> None:
    model = served()
    (call,) = model(detections([], []))
    assert {name: array.shape for name, array in call.arrays.items()} == {
        "TRACK_IDS": (0,),
        "TRACK_BOXES": (0, 4),
        "TRACK_SCORES": (0,),
        "TRACK_CLASSES": (0,),
        "DETECTION_INDEX": (0,),
    }


def test_only_requested_outputs_are_sent() -> None:
    (call,) = served()(detections(outputs=["TRACK_IDS", "DETECTION_INDEX"]))
    assert set(call.arrays) == {"TRACK_IDS", "DETECTION_INDEX"}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (
            detections(scores=[0.9, 0.9]),
            r"as many boxes as scores and classes, got BOXES \[1,4\], SCORES \[2\]",
        ),
        (detections(classes=[1, 2]), "as many boxes as scores"),
        (detections(scores=[np.nan]), "finite"),
        (detections([[0, 0, np.inf, 1]]), "finite"),
        (detections(BOX * 11, [0.9] * 11), "11 boxes are more than the model's max_detections of 10"),
    ],
)
def test_bad_detections_fail_alone_and_leave_the_state(request_: Any, error: str) -> None:
    model = served({"max_detections": "10"})
    model(detections())
    bad, good = model(request_, detections())
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(bad.error)
    assert good.arrays["TRACK_IDS"].tolist() == [1]
