"""The filter for many tracks against the textbook's for one, with whole matrices."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends.bytetrack import kalman

Array = npt.NDArray[np.float64]


class TextbookFilter:
    """Predict and update as every textbook has them, with F, H, Q and R as matrices."""

    def __init__(self, measurement: Array) -> None:
        height = measurement[3]
        place, speed = height / 20, height / 160
        self.x = np.concatenate([measurement, np.zeros(4)])
        self.P = (
            np.diag([2 * place, 2 * place, 0.01, 2 * place, 10 * speed, 10 * speed, 1e-5, 10 * speed]) ** 2
        )
        self.F = np.eye(8)
        for i in range(4):
            self.F[i, i + 4] = 1
        self.H = np.hstack([np.eye(4), np.zeros((4, 4))])

    def predict(self) -> None:
        place, speed = self.x[3] / 20, self.x[3] / 160
        Q = np.diag([place, place, 0.01, place, speed, speed, 1e-5, speed]) ** 2
        self.x = self.F @ self.x
        self.P = self.F @ self.P @ self.F.T + Q

    def update(self, z: Array) -> None:
        place = self.x[3] / 20
        R = np.diag([place, place, 0.1, place]) ** 2
        S = self.H @ self.P @ self.H.T + R
        K = self.P @ self.H.T @ np.linalg.inv(S)
        self.x = self.x + K @ (z - self.H @ self.x)
        self.P = (np.eye(8) - K @ self.H) @ self.P


@pytest.mark.parametrize("seed", range(3))
def test_filter_agrees_with_the_textbook_over_many_frames(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.uniform([0, 0, 0.3, 20], [1000, 600, 2.0, 300], (5, 4))
    plain = [TextbookFilter(each) for each in start]
    means, covariances = kalman.initiate(start)
    measured = start
    for frame in range(40):
        means, covariances = kalman.predict(means, covariances)
        for each in plain:
            each.predict()
        if frame % 5 != 4:  # now and then nothing is seen
            measured = measured + random.normal([3, -2, 0, 0.5], [1, 1, 0.01, 1], (5, 4))
            means, covariances = kalman.update(means, covariances, measured)
            for each, z in zip(plain, measured, strict=True):
                each.update(z)
        _agree(means, covariances, plain)


def _agree(means: Array, covariances: Array, plain: list[Any]) -> None:
    np.testing.assert_allclose(means, [each.x for each in plain], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(covariances, [each.P for each in plain], rtol=1e-6, atol=1e-9)


def test_filter_learns_the_speed_of_a_box() -> None:
    means, covariances = kalman.initiate(np.array([[100.0, 50.0, 0.5, 40.0]]))
    for frame in range(1, 60):
        means, covariances = kalman.predict(means, covariances)
        z = np.array([[100.0 + 4 * frame, 50.0, 0.5, 40.0]])
        means, covariances = kalman.update(means, covariances, z)
    assert means[0, 4] == pytest.approx(4.0, abs=0.05)
    assert means[0, 5] == pytest.approx(0.0, abs=0.05)
