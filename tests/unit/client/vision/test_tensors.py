"""Functions on tensors against the same on arrays of numpy; on a GPU too (`make test-gpu`)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nereid_client.vision import (
    detect,
    detect_with_extras,
    instance_masks,
    iou,
    keypoints,
    letterbox,
    nms,
    normalise,
    on_torch,
    resize,
    to_corners,
    top_k,
)

Array = npt.NDArray[Any]

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 60)


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def host(tensor: Any, device: str) -> Array:
    """Return a result as an array; it must be a tensor where the inputs were."""
    assert isinstance(tensor, torch.Tensor) and tensor.device.type == device
    array: Array = tensor.cpu().numpy()
    return array


def some_boxes(random: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Boxes whose overlaps are often equal to a threshold, and scores that are often equal."""
    corners = random.integers(0, 30, (count, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + random.integers(0, 20, (count, 2))], axis=1, dtype=np.float32)
    return boxes, (random.integers(0, 8, count) / 8).astype(np.float32), random.integers(0, 3, count)


@given(SEEDS, st.integers(0, 60), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans(), st.integers(1, 70))
def test_nms_keeps_the_same(
    device: str, seed: int, count: int, threshold: float, one_class: bool, limit: int
) -> None:
    boxes, scores, classes = some_boxes(np.random.default_rng(seed), count)
    given = None if one_class else classes
    moved = [torch.tensor(each, device=device) for each in (boxes, scores, classes)]
    found = nms(moved[0], moved[1], None if one_class else moved[2], threshold, limit)
    kept = host(found, device)
    assert kept.dtype == np.int64
    assert kept.tolist() == nms(boxes, scores, given, threshold, limit).tolist()


def test_nms_of_more_boxes_than_are_compared_at_once(device: str) -> None:
    random = np.random.default_rng(0)
    corners = random.random((2500, 2), np.float32) * 300
    boxes = np.concatenate([corners, corners + random.random((2500, 2), np.float32) * 40], axis=1)
    scores = random.random(2500, np.float32)
    kept = nms(torch.tensor(boxes, device=device), torch.tensor(scores, device=device), None, 0.3, 2500)
    assert host(kept, device).tolist() == nms(boxes, scores, None, 0.3, 2500).tolist()


@given(SEEDS)
def test_overlaps_are_the_same(device: str, seed: int) -> None:
    boxes, _, _ = some_boxes(np.random.default_rng(seed), 20)
    tensor = torch.tensor(boxes, device=device)
    assert np.array_equal(host(iou(tensor, tensor[:7]), device), iou(boxes, boxes[:7]))
    assert np.array_equal(host(to_corners(tensor), device), to_corners(boxes))


@given(SEEDS, SIDES, SIDES, SIDES, SIDES, st.sampled_from(["nearest", "bilinear"]))
def test_resized_pictures_differ_by_a_level(
    device: str, seed: int, height: int, width: int, rows: int, columns: int, method: str
) -> None:
    """By what resizes on a GPU, where Pillow does not.

    A picture of odd sides has no place in the middle of two pixels, of which Pillow may take either.
    """
    pixels = np.random.default_rng(seed).integers(0, 256, (2 * height - 1, 2 * width - 1, 3), np.uint8)
    box = (0, 0, 2 * width - 1, 2 * height - 1)
    resized = host(on_torch.resize(torch.tensor(pixels, device=device), (rows, columns), method, box), device)
    expected = resize(pixels, (rows, columns), method)
    assert resized.dtype == np.uint8 and resized.shape == expected.shape
    assert np.abs(resized.astype(int) - expected).max() <= (method != "nearest")


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(17, 90), (90, 17), (23, 31), (80, 120)])
def test_smooth_pictures_differ_by_two_levels(device: str, method: str, size: tuple[int, int]) -> None:
    """Pillow rounds and cuts off in the order of its two passes, which varies; here nothing overshoots."""
    y, x = np.mgrid[0:40, 0:60]
    pixels = np.stack([60 + y, 60 + x, 100 + 50 * np.sin(x / 9 + y / 7)], axis=-1).astype(np.uint8)
    tensor = torch.tensor(pixels, device=device)
    for box in ((0, 0, 60, 40), (3.25, 5.5, 42.875, 30)):
        resized = host(on_torch.resize(tensor, size, method, box), device)
        assert np.abs(resized.astype(int) - resize(pixels, size, method, box)).max() <= 2


def test_parts_of_pictures(device: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    for box in ((3, 5, 43, 30), (3.25, 5.5, 42.875, 30)):  # also between pixels
        resized = host(resize(torch.tensor(pixels, device=device), (20, 70), box=box), device)
        assert np.abs(resized.astype(int) - resize(pixels, (20, 70), box=box)).max() <= 1


@given(SEEDS, SIDES, SIDES, st.booleans())
def test_letterbox_and_its_inverse_are_the_same(
    device: str, seed: int, height: int, width: int, enlarge: bool
) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, 3), np.uint8)
    expected, place = letterbox(pixels, (48, 32), enlarge=enlarge)
    inside, found = letterbox(torch.tensor(pixels, device=device), (48, 32), enlarge=enlarge)
    assert found == place
    assert np.abs(host(inside, device).astype(int) - expected).max() <= 1
    places = (random.random((5, 7, 2)) * 60 - 10).astype(np.float32)
    for ours, reference in ((found.to_picture, place.to_picture), (found.from_picture, place.from_picture)):
        moved = host(ours(torch.tensor(places, device=device)), device)
        np.testing.assert_allclose(moved, reference(places), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("options", [(0, 255), ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))])
def test_normalised_values_are_the_same(device: str, options: tuple[Any, Any], planes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    tensor = normalise(torch.tensor(pixels, device=device), *options, planes)
    assert tensor.is_contiguous()
    np.testing.assert_allclose(host(tensor, device), normalise(pixels, *options, planes), rtol=1e-6)


@given(SEEDS, st.integers(0, 50), st.booleans())
def test_detections_are_the_same(device: str, seed: int, count: int, objectness: bool) -> None:
    random = np.random.default_rng(seed)
    rows = random.random((count, 4 + objectness + 3 + 6)).astype(np.float32)
    rows[:, :4] *= 60
    tensor = torch.tensor(rows, device=device)
    expected, extras = detect_with_extras(rows, 6, objectness, 0.3)
    found, ours = detect_with_extras(tensor, 6, objectness, 0.3)
    for each, reference in zip((*found, ours), (*expected, extras), strict=True):
        assert np.array_equal(host(each, device), reference) and host(each, device).dtype == reference.dtype
    for each, reference in zip(keypoints(ours), keypoints(extras), strict=True):
        assert np.array_equal(host(each, device), reference)
    plain = detect(tensor[:, :-6], objectness, 0.3)
    assert np.array_equal(host(plain.boxes, device), expected.boxes)


@given(SEEDS)
def test_masks_are_the_same_but_at_the_threshold(device: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    prototypes, weights = (
        random.standard_normal(shape).astype(np.float32) for shape in ((4, 16, 16), (3, 4))
    )
    corners = random.random((3, 2), np.float32) * 60
    boxes = np.concatenate([corners, corners + random.random((3, 2), np.float32) * 40], axis=1)
    _, place = letterbox(np.zeros((30, 50, 3), np.uint8), (64, 64))
    first, second, third = (torch.tensor(each, device=device) for each in (prototypes, weights, boxes))
    masks = host(instance_masks(first, second, third, place, (64, 64)), device)
    expected = instance_masks(prototypes, weights, boxes, place, (64, 64))
    assert masks.shape == (3, 30, 50) and masks.dtype == np.bool_
    assert (masks != expected).sum() <= 2


def test_best_classes_are_the_same(device: str) -> None:
    scores = np.array([0.1, 0.5, 0.1, 0.5], np.float32)
    assert top_k(torch.tensor(scores, device=device), 3, ["a"]) == top_k(scores, 3, ["a"])


def test_backend_that_does_not_take_an_array() -> None:
    boxes = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match="unknown backend 'cupy': expected one of numpy, opencv, torch"):
        nms(boxes, boxes[:, 0], backend="cupy")
    with pytest.raises(ValueError, match=r"backend 'torch' does not take a numpy\.ndarray"):
        nms(boxes, boxes[:, 0], backend="torch")
    with pytest.raises(ValueError, match=r"backend 'opencv' does not take a torch\.Tensor"):
        nms(torch.zeros(1, 4), torch.zeros(1), backend="opencv")
