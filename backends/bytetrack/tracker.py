"""ByteTrack (Zhang et al., ECCV 2022): tracks over the frames of one camera, from boxes and their scores.

Boxes with high scores are matched first, with all tracks; then those with low scores with what is left, since
a low score is more often an object half hidden than no object. Own code after the paper and its published
parameters. Boxes are [left, top, right, bottom] in pixels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import lap
import numpy as np
import numpy.typing as npt

from backends.bytetrack import kalman
from backends.bytetrack.kalman import Array
from nereid_client.vision import iou

_LOW_LIMIT: Final = 0.5
"""Largest IoU distance at which a box of low score continues a track."""
_UNCONFIRMED_LIMIT: Final = 0.7
_DUPLICATE: Final = 0.15
"""IoU distance below which a lost track and another are the same object."""
_NEW_MARGIN: Final = 0.1
"""By so much a score must exceed `track_thresh` for a new track."""
_FRAME_RATE: Final = 30


@dataclass(frozen=True)
class Parameters:
    """The authors' values.

    Attributes:
        track_thresh: scores above it are high.
        low_thresh: scores at or below it are ignored.
        match_thresh: largest distance at which a box of high score continues a track.
        track_buffer: frames at 30 frames a second after which a lost track is forgotten.
        frame_rate: frames a second of the camera.
        max_tracks: tracks of a sequence, lost ones included; the longest lost are forgotten first.
    """

    track_thresh: float = 0.5
    low_thresh: float = 0.1
    match_thresh: float = 0.8
    track_buffer: int = 30
    frame_rate: float = 30.0
    max_tracks: int = 1000

    @property
    def max_lost(self) -> int:
        """Frames after which a lost track is forgotten."""
        return int(self.frame_rate / _FRAME_RATE * self.track_buffer)


class Tracked(NamedTuple):
    """The tracks that a frame shows, in the order of their ids.

    Attributes:
        ids: INT64 [m], from 1 in each sequence.
        boxes: FP32 [m, 4], as the filter has them.
        scores, classes: FP32 and INT32 [m], of the detection that each continues with.
        detections: INT32 [m], the index of that detection.
    """

    ids: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int32]
    detections: npt.NDArray[np.int32]


@dataclass(eq=False)
class _Track:
    """An object that is followed; `id` 0 until it is confirmed by a second detection."""

    mean: Array
    covariance: Array
    started: int
    seen: int
    detection: int
    id: int = 0
    lost: bool = False

    @property
    def age(self) -> int:
        return self.seen - self.started


class Tracker:
    """The tracks of one camera."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._frame = 0
        self._tracks: list[_Track] = []
        self._next_id = 1

    @property
    def tracks(self) -> int:
        """Tracks that are remembered, lost ones included."""
        return len(self._tracks)

    def update(self, boxes: Array, scores: Array, classes: npt.NDArray[np.int32]) -> Tracked:
        """Take in the detections of the next frame: boxes [n, 4], scores [n] and classes [n]; n may be 0."""
        self._frame += 1
        parameters = self._parameters
        # A box without an area cannot be told from another by its overlap.
        real = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        high = np.flatnonzero(real & (scores > parameters.track_thresh))
        low = np.flatnonzero(real & (scores > parameters.low_thresh) & (scores <= parameters.track_thresh))
        confirmed = [track for track in self._tracks if track.id]
        unconfirmed = [track for track in self._tracks if not track.id]
        _predict(confirmed)

        left, high = self._match(confirmed, high, boxes, scores, parameters.match_thresh)
        left, _ = self._match([track for track in left if not track.lost], low, boxes, None, _LOW_LIMIT)
        for track in left:
            track.lost = True
        forgotten, high = self._match(unconfirmed, high, boxes, scores, _UNCONFIRMED_LIMIT)
        self._start(high, boxes, scores)
        self._forget(forgotten)
        return self._shown(scores, classes)

    def _match(
        self,
        tracks: Sequence[_Track],
        detections: npt.NDArray[np.intp],
        boxes: Array,
        scores: Array | None,
        limit: float,
    ) -> tuple[list[_Track], npt.NDArray[np.intp]]:
        """Continue tracks with detections; return what is left of both. `scores` weigh the overlap."""
        if not tracks or not len(detections):
            return list(tracks), detections
        overlaps = iou(_boxes(tracks), boxes[detections])
        if scores is not None:
            overlaps = overlaps * scores[detections]
        _, columns, rows = lap.lapjv(1 - overlaps, extend_cost=True, cost_limit=limit)
        matched = [(track, column) for track, column in zip(tracks, columns, strict=True) if column >= 0]
        if matched:
            self._continue(
                [track for track, _ in matched], detections[[column for _, column in matched]], boxes
            )
        left = [track for track, column in zip(tracks, columns, strict=True) if column < 0]
        return left, detections[rows < 0]

    def _continue(self, tracks: Sequence[_Track], detections: npt.NDArray[np.intp], boxes: Array) -> None:
        means, covariances = kalman.update(*_states(tracks), _measurements(boxes[detections]))
        for track, mean, covariance, detection in zip(tracks, means, covariances, detections, strict=True):
            track.mean, track.covariance, track.detection = mean, covariance, int(detection)
            track.seen, track.lost = self._frame, False
            if not track.id:
                self._confirm(track)

    def _confirm(self, track: _Track) -> None:
        track.id, self._next_id = self._next_id, self._next_id + 1

    def _start(self, detections: npt.NDArray[np.intp], boxes: Array, scores: Array) -> None:
        """Start tracks; those of the first frame need no second detection."""
        new = detections[scores[detections] >= self._parameters.track_thresh + _NEW_MARGIN]
        means, covariances = kalman.initiate(_measurements(boxes[new]))
        for mean, covariance, detection in zip(means, covariances, new, strict=True):
            track = _Track(mean, covariance, self._frame, self._frame, int(detection))
            self._tracks.append(track)
            if self._frame == 1:
                self._confirm(track)

    def _forget(self, unconfirmed: Iterable[_Track]) -> None:
        """Drop tracks that were not confirmed, were lost for too long, are duplicates or are too many."""
        gone = set(unconfirmed)
        gone.update(t for t in self._tracks if t.lost and self._frame - t.seen > self._parameters.max_lost)
        gone.update(_duplicates([track for track in self._tracks if track.id and track not in gone]))
        kept = [track for track in self._tracks if track not in gone]
        surplus = len(kept) - self._parameters.max_tracks
        if surplus > 0:
            # Those seen last first, and among them the oldest.
            kept.sort(key=lambda track: (track.seen, track.id > 0, -track.id))
            gone = set(kept[:surplus])
            kept = [track for track in kept if track not in gone]
        self._tracks = kept

    def _shown(self, scores: Array, classes: npt.NDArray[np.int32]) -> Tracked:
        shown = sorted(
            (track for track in self._tracks if track.id and not track.lost), key=lambda track: track.id
        )
        detections = np.array([track.detection for track in shown], np.int32)
        return Tracked(
            np.array([track.id for track in shown], np.int64),
            _boxes(shown).astype(np.float32),
            scores[detections].astype(np.float32),
            classes[detections].astype(np.int32),
            detections,
        )


def _predict(tracks: Sequence[_Track]) -> None:
    if not tracks:
        return
    means, covariances = _states(tracks)
    # What is lost does not go on growing.
    means[[track.lost for track in tracks], 7] = 0
    for track, mean, covariance in zip(tracks, *kalman.predict(means, covariances), strict=True):
        track.mean, track.covariance = mean, covariance


def _duplicates(tracks: Sequence[_Track]) -> list[_Track]:
    """Return the younger of each lost track and another one that cover the same place."""
    lost = [track for track in tracks if track.lost]
    others = [track for track in tracks if not track.lost]
    if not lost or not others:
        return []
    pairs = np.argwhere(1 - iou(_boxes(others), _boxes(lost)) < _DUPLICATE)
    return [lost[j] if others[i].age > lost[j].age else others[i] for i, j in pairs]


def _states(tracks: Sequence[_Track]) -> tuple[Array, Array]:
    return np.stack([track.mean for track in tracks]), np.stack([track.covariance for track in tracks])


def _boxes(tracks: Sequence[_Track]) -> Array:
    """Return the boxes [n, 4] of tracks."""
    states = np.array([track.mean[:4] for track in tracks]).reshape(-1, 4)
    half = np.stack([states[:, 2] * states[:, 3], states[:, 3]], axis=1) / 2
    return np.concatenate([states[:, :2] - half, states[:, :2] + half], axis=1)


def _measurements(boxes: Array) -> Array:
    """Return centres, aspect ratios and heights [n, 4] of boxes."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    centres = boxes[:, :2] + sizes / 2
    return np.concatenate([centres, sizes[:, :1] / sizes[:, 1:], sizes[:, 1:]], axis=1)
