"""Tracks over synthetic boxes: they cross, vanish, return, lose their scores, and change their classes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from backends.bytetrack.tracker import Parameters, Tracked, Tracker
from nereid_client.vision import iou

Box = Sequence[float]


def frame(
    tracker: Tracker, boxes: Sequence[Box], scores: Sequence[float] | float = 0.9, classes: Sequence[int] = ()
) -> Tracked:
    """Give a tracker the detections of a frame."""
    count = len(boxes)
    values = np.full(count, scores) if isinstance(scores, float) else np.array(scores)
    labels = np.array(classes or [0] * count, np.int32)
    return tracker.update(np.array(boxes, np.float64).reshape(count, 4), values, labels)


def box(x: float, y: float, width: float = 50, height: float = 100) -> Box:
    """A box by its left top corner."""
    return [x, y, x + width, y + height]


def ids(tracked: Tracked) -> list[int]:
    return list(tracked.ids.tolist())


def test_ids_stay_while_boxes_move() -> None:
    tracker = Tracker(Parameters())
    seen = [frame(tracker, [box(10 + 4 * t, 20), box(400 - 4 * t, 300)]) for t in range(30)]
    assert {tuple(ids(each)) for each in seen} == {(1, 2)}
    assert seen[-1].detections.tolist() == [0, 1]


def test_boxes_follow_the_detections() -> None:
    tracker = Tracker(Parameters())
    for t in range(30):
        tracked = frame(tracker, [box(10 + 4 * t, 20)])
    np.testing.assert_allclose(tracked.boxes[0], box(10 + 4 * 29, 20), atol=1.0)


def test_ids_stay_when_detections_change_their_order() -> None:
    tracker = Tracker(Parameters())
    frame(tracker, [box(10, 10), box(300, 10)])
    tracked = frame(tracker, [box(302, 10), box(12, 10)])
    assert ids(tracked) == [1, 2]
    assert tracked.detections.tolist() == [1, 0]


def test_crossing_boxes_keep_their_ids() -> None:
    tracker = Tracker(Parameters())
    for t in range(61):
        left, right = box(5 * t, 100), box(300 - 5 * t, 130)
        tracked = frame(tracker, [left, right] if t % 2 else [right, left])
        first = tracked.boxes[ids(tracked).index(1)] if t else None
        if first is not None:
            started_right = 300 - 5 * t  # of the first frame's first box
            assert abs(first[0] - started_right) < 15, t


def test_a_box_that_vanishes_returns_with_its_id() -> None:
    tracker = Tracker(Parameters())
    for t in range(20):
        frame(tracker, [box(10 + 3 * t, 50)])
    for _ in range(20, 35):
        assert ids(frame(tracker, [])) == []
    assert ids(frame(tracker, [box(10 + 3 * 35, 50)])) == [1]


def test_a_box_that_is_away_for_too_long_gets_a_new_id() -> None:
    tracker = Tracker(Parameters(track_buffer=10))
    for _ in range(5):
        frame(tracker, [box(10, 50)])
    for _ in range(11):
        frame(tracker, [])
    assert tracker.tracks == 0
    frame(tracker, [box(10, 50)])
    assert ids(frame(tracker, [box(10, 50)])) == [2]


def test_track_buffer_counts_in_frames_of_30_a_second() -> None:
    assert Parameters(track_buffer=30, frame_rate=15).max_lost == 15
    tracker = Tracker(Parameters(track_buffer=10, frame_rate=60))
    frame(tracker, [box(10, 50)])
    for _ in range(20):
        frame(tracker, [])
    assert tracker.tracks == 1
    frame(tracker, [])
    assert tracker.tracks == 0


def test_low_scores_continue_a_track() -> None:
    tracker = Tracker(Parameters())
    for t in range(10):
        frame(tracker, [box(10 + 2 * t, 50)])
    for t in range(10, 20):  # half hidden
        tracked = frame(tracker, [box(10 + 2 * t, 50)], 0.3)
        assert ids(tracked) == [1]
        assert tracked.scores.tolist() == pytest.approx([0.3])


@pytest.mark.parametrize("score", [0.05, 0.1, 0.3, 0.5, 0.59])
def test_scores_that_are_not_high_start_no_track(score: float) -> None:
    tracker = Tracker(Parameters())
    for _ in range(5):
        assert ids(frame(tracker, [box(10, 50)], score)) == []
    assert tracker.tracks == 0


def test_low_scores_do_not_bring_back_a_lost_track() -> None:
    tracker = Tracker(Parameters())
    frame(tracker, [box(10, 50)])
    frame(tracker, [])
    assert ids(frame(tracker, [box(10, 50)], 0.3)) == []
    assert ids(frame(tracker, [box(10, 50)], 0.9)) == [1]


def test_a_detection_of_one_frame_is_no_track() -> None:
    tracker = Tracker(Parameters())
    frame(tracker, [box(10, 50)])
    assert ids(frame(tracker, [box(10, 50), box(500, 50)])) == [1]
    assert ids(frame(tracker, [box(10, 50)])) == [1]
    assert tracker.tracks == 1
    # Its place was not kept: it takes two frames again.
    assert ids(frame(tracker, [box(10, 50), box(500, 50)])) == [1]
    assert ids(frame(tracker, [box(10, 50), box(500, 50)])) == [1, 2]


def test_a_duplicate_detection_gets_no_id_of_its_own() -> None:
    tracker = Tracker(Parameters())
    for t in range(10):
        tracked = frame(tracker, [box(10 + t, 50), box(11 + t, 51)], [0.9, 0.55])
    assert ids(tracked) == [1]


def test_a_lost_track_at_the_place_of_another_is_dropped() -> None:
    tracker = Tracker(Parameters())
    for _ in range(10):
        frame(tracker, [box(100, 100), box(128, 100)])
    assert tracker.tracks == 2
    for t in range(8):  # the second is not seen any more, and the first moves to where it was
        tracked = frame(tracker, [box(100 + 4 * min(t, 7), 100)])
    assert len(ids(tracked)) == tracker.tracks == 1


def test_classes_are_those_of_the_last_detection() -> None:
    tracker = Tracker(Parameters())
    frame(tracker, [box(10, 50), box(300, 50)], classes=[3, 5])
    tracked = frame(tracker, [box(302, 50), box(12, 50)], classes=[5, 4])
    assert ids(tracked) == [1, 2]
    assert tracked.classes.tolist() == [4, 5]


def test_frames_without_detections_are_frames() -> None:
    tracker = Tracker(Parameters())
    tracked = frame(tracker, [])
    assert tracked.boxes.shape == (0, 4)
    assert [array.dtype for array in tracked] == [np.int64, np.float32, np.float32, np.int32, np.int32]
    # The first frame was empty: in the second, a detection is not confirmed at once.
    assert ids(frame(tracker, [box(10, 50)])) == []
    assert ids(frame(tracker, [box(10, 50)])) == [1]


@pytest.mark.parametrize("bad", [[10, 10, 10, 50], [10, 50, 60, 10], [60, 10, 10, 50]])
def test_boxes_without_an_area_are_ignored(bad: Box) -> None:
    tracker = Tracker(Parameters())
    with np.errstate(all="raise"):
        assert ids(frame(tracker, [bad, box(200, 10)])) == [1]


def test_tracks_are_bounded_and_the_longest_lost_go_first() -> None:
    tracker = Tracker(Parameters(max_tracks=3))
    frame(tracker, [box(100, 0), box(300, 0), box(500, 0)])
    frame(tracker, [box(300, 0), box(500, 0)])
    frame(tracker, [box(500, 0), box(700, 0)])
    assert tracker.tracks == 3
    assert ids(frame(tracker, [box(500, 0), box(700, 0), box(300, 0), box(100, 0)])) == [2, 3, 4]


def test_ids_begin_with_1_in_every_sequence() -> None:
    frame(Tracker(Parameters()), [box(0, 0), box(300, 0)])
    assert ids(frame(Tracker(Parameters()), [box(0, 0)])) == [1]


def test_a_crowd_keeps_its_ids() -> None:
    random = np.random.default_rng(7)
    starts = random.permutation(np.array([(x, y) for x in range(0, 1000, 100) for y in range(0, 1000, 150)]))
    speeds = random.uniform(-1, 1, starts.shape)
    tracker = Tracker(Parameters())
    first: dict[int, int] = {}
    by_object: dict[int, int] = {}
    for t in range(40):
        corners: npt.NDArray[np.float64] = starts + speeds * t + random.normal(0, 0.5, starts.shape)
        order = random.permutation(len(starts))
        tracked = frame(tracker, [box(x, y) for x, y in corners[order]])
        by_object = {int(order[d]): i for i, d in zip(ids(tracked), tracked.detections, strict=True)}
        first = first or by_object
    assert by_object == first


def test_iou_of_known_boxes() -> None:
    a = np.array([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    b = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [100, 100, 110, 110]])
    np.testing.assert_allclose(iou(a, b), np.array([[1.0, 1 / 3, 0], [0, 0, 0]]))


@pytest.mark.parametrize("better", [0, 1])
def test_of_two_equal_overlaps_the_higher_score_continues_the_track(better: int) -> None:
    tracker = Tracker(Parameters())
    for _ in range(3):
        frame(tracker, [box(100, 100)])
    scores = [0.55, 0.55]
    scores[better] = 0.95
    tracked = frame(tracker, [box(96, 100), box(104, 100)], scores)
    assert tracked.detections.tolist() == [better]


def test_a_lost_track_does_not_go_on_growing() -> None:
    tracker = Tracker(Parameters())
    for t in range(21):
        frame(tracker, [box(300 - 2.5 * t, 300 - 5 * t, 30 + 5 * t, 60 + 10 * t)])
    for _ in range(28):
        frame(tracker, [])
    assert ids(frame(tracker, [box(250, 200, 130, 260)], 0.75)) == [1]
