"""A Kalman filter for boxes that move at a constant speed, for any number of tracks at once.

A state is [centre x, centre y, width / height, height] and the speeds of these four, in pixels and pixels a
frame; a measurement is the first half. Noise grows with the height of the box, as in SORT and its followers:
what is large is near, and moves and jitters by more pixels.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Standard deviations of position and speed as a share of the height, and of the aspect ratio as such.
_POSITION: Final = 1 / 20
_SPEED: Final = 1 / 160
_ASPECT: Final = 1e-2
_ASPECT_SPEED: Final = 1e-5
_MEASURED_ASPECT: Final = 1e-1

_MOTION: Final = np.eye(8) + np.eye(8, k=4)
"""A frame later, each of the four has moved by its speed."""


def initiate(measurements: Array) -> tuple[Array, Array]:
    """Return means [n, 8] and covariances [n, 8, 8] of new tracks from measurements [n, 4]."""
    means = np.concatenate([measurements, np.zeros_like(measurements)], axis=1)
    position, speed = 2 * _POSITION, 10 * _SPEED
    return means, _variances(measurements[:, 3], position, _ASPECT, speed)


def predict(means: Array, covariances: Array) -> tuple[Array, Array]:
    """Return means and covariances a frame later."""
    noise = _variances(means[:, 3], _POSITION, _ASPECT, _SPEED)
    return means @ _MOTION.T, _MOTION @ covariances @ _MOTION.T + noise


def update(means: Array, covariances: Array, measurements: Array) -> tuple[Array, Array]:
    """Return means and covariances corrected by a measurement [n, 4] for each track."""
    projected = covariances[:, :4, :4] + _variances(means[:, 3], _POSITION, _MEASURED_ASPECT)
    # The gain is P H' S^-1; S is symmetric.
    gains = np.linalg.solve(projected, covariances[:, :4, :]).transpose(0, 2, 1)
    innovations = measurements - means[:, :4]
    corrected = means + np.einsum("nij,nj->ni", gains, innovations)
    return corrected, covariances - gains @ projected @ gains.transpose(0, 2, 1)


def _variances(heights: Array, position: float, aspect: float, speed: float | None = None) -> Array:
    """Return diagonal matrices [n, 8, 8], or [n, 4, 4] without a speed."""
    place = position * heights
    deviations = [place, place, np.full_like(heights, aspect), place]
    if speed is not None:
        rate = speed * heights
        deviations += [rate, rate, np.full_like(heights, _ASPECT_SPEED), rate]
    columns = np.stack(deviations, axis=1)
    matrices = np.zeros((*columns.shape, columns.shape[1]))
    diagonal = np.arange(columns.shape[1])
    matrices[:, diagonal, diagonal] = columns**2
    return matrices
