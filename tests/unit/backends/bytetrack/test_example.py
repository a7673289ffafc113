"""The example's detector and the tracker over the example's clip, without a server."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from backends.bytetrack.tracker import Parameters, Tracker

EXAMPLE = Path(__file__).parents[4] / "examples/video"


def load(path: str) -> Any:
    """Import a file of the example."""
    spec = spec_from_file_location(f"example_{Path(path).stem}", EXAMPLE / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_keeps_three_ids_while_rectangles_cross_and_return() -> None:
    clip, detector = load("make_clip.py"), load("models/rectangles/1/model.py")
    tracker = Tracker(Parameters())
    by_class: dict[int, set[int]] = {}
    scores = []
    for index in range(clip.FRAMES):
        boxes, confidences, classes = detector.detect(clip.draw(index)[::2, ::2])
        scores += confidences.tolist()
        tracked = tracker.update(boxes.astype(np.float64), confidences.astype(np.float64), classes)
        for label, number in zip(tracked.classes.tolist(), tracked.ids.tolist(), strict=True):
            by_class.setdefault(label, set()).add(number)
    assert by_class == {0: {1}, 1: {2}, 2: {3}}
    assert min(scores) < 0.7  # some were partly hidden
