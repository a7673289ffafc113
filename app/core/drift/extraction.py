"""Makes features of tensors: columns of numbers or categories, one value for each row. Pure.

| kind | of | features |
|---|---|---|
| numbers | up to 64 elements a row | each element; whole numbers of few kinds as categories |
| summary | more of them | mean, deviation, min, max, and the shares of zeros and NaN |
| picture | three dimensions, one of up to four channels | the same of each channel, on every 16th pixel |
| vector | more than 64 floats in one dimension | 16 fixed random projections, and the length |
| classes | shares of classes, or what becomes them | the class, its share (confidence), the entropy |
| text | strings | length, share of characters other than ASCII, words |
| labels | strings of few kinds | the string |
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.drift.cells import Column, Numbers, plain
from app.core.drift.reference import WatchedTensor

MOST_COLUMNS: Final = 64
"""Elements of a row up to which each is a feature of its own."""
SUMMARY: Final = ("mean", "deviation", "min", "max", "zeros", "nan")
CLASSES: Final = ("class", "confidence", "entropy")
TEXT: Final = ("length", "foreign", "words")
_STRIDE: Final = 16
_PROJECTIONS: Final = 16
_MOST_TEXT: Final = 4096
_LABEL: Final = 200

Rows = npt.NDArray[Any]
"""A tensor whose first dimension is that of rows; strings are an object array of `bytes`."""


def columns(watched: WatchedTensor, rows: Rows) -> list[Column] | None:
    """Return the features of some rows of a tensor; None if their shape is not that of the reference."""
    if watched.width and rows.size != watched.width * len(rows):
        return None
    return _EXTRACTORS[watched.kind](watched, rows)


def names(watched: WatchedTensor) -> list[str]:
    """Return the names of a tensor's features, in the order of their columns."""
    name, width = watched.name, watched.width
    match watched.kind:
        case "numbers":
            return [name] if width == 1 else [f"{name}[{number}]" for number in range(width)]
        case "picture":
            channels = range(watched.channels[1])
            return [f"{name}[{channel}].{part}" for channel in channels for part in SUMMARY]
        case "vector":
            return [*(f"{name}.projection{number}" for number in range(_PROJECTIONS)), f"{name}.length"]
        case "labels":
            return [name]
        case kind:
            parts = {"summary": SUMMARY, "classes": CLASSES, "text": TEXT}[kind]
            return [f"{name}.{part}" for part in parts]


def _numbers(watched: WatchedTensor, rows: Rows) -> list[Column]:
    table = np.ascontiguousarray(rows.reshape(len(rows), -1).T)
    if not watched.features:  # as they are, for a reference that is being made
        return list(table.astype(np.float64))
    whole = (feature.is_category for feature in watched.features)
    return [plain(row) if each else row.astype(np.float64) for each, row in zip(whole, table, strict=True)]


def _summary(_: WatchedTensor, rows: Rows) -> list[Column]:
    return list(_summarised(rows.reshape(len(rows), -1)).T)


def _picture(watched: WatchedTensor, rows: Rows) -> list[Column]:
    axis, channels = watched.channels
    planes = np.moveaxis(rows, axis + 1, 1).reshape(len(rows), channels, -1)[:, :, ::_STRIDE]
    return [column for channel in range(channels) for column in _summarised(planes[:, channel]).T]


def _summarised(table: Rows) -> Numbers:
    """Return `SUMMARY` of each row."""
    if not table.shape[1]:
        return np.zeros((len(table), len(SUMMARY)))
    values = table.astype(np.float64)
    unknown = np.isnan(values)
    share = unknown.mean(axis=1)
    if unknown.any():
        values = np.where(unknown, 0.0, values)
    zeros = (values == 0).mean(axis=1) - share
    with np.errstate(over="ignore", invalid="ignore"):
        parts = (
            values.mean(axis=1),
            values.std(axis=1),
            values.min(axis=1),
            values.max(axis=1),
            zeros,
            share,
        )
    return np.stack(parts, axis=1)


def _vector(_: WatchedTensor, rows: Rows) -> list[Column]:
    table = rows.reshape(len(rows), -1).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return [*(table @ _projections(table.shape[1])).T, np.linalg.norm(table, axis=1)]


@cache
def _projections(width: int) -> Numbers:
    """Return the same directions everywhere: signs, by which no rounding differs."""
    signs = np.random.Generator(np.random.PCG64(width)).integers(0, 2, (width, _PROJECTIONS))
    return np.asarray((2.0 * signs - 1) / np.sqrt(width))


def shares(rows: Rows, softmax: bool) -> Numbers:
    """Return the shares of classes of each row."""
    table = rows.reshape(len(rows), -1).astype(np.float64)
    if not softmax:
        return table
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(table - table.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _classes(watched: WatchedTensor, rows: Rows) -> list[Column]:
    table = shares(rows, watched.softmax)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(table > 0, np.log(table), 0.0)
    return [plain(table.argmax(axis=1)), table.max(axis=1), -(table * logs).sum(axis=1)]


def _text(_: WatchedTensor, rows: Rows) -> list[Column]:
    texts = [" ".join(text) for text in _texts(rows)]
    foreign = [sum(not each.isascii() for each in text) / max(len(text), 1) for text in texts]
    counted = [[float(len(text)) for text in texts], foreign, [float(len(text.split())) for text in texts]]
    return [np.array(column) for column in counted]


def _labels(_: WatchedTensor, rows: Rows) -> list[Column]:
    return [[text[0][:_LABEL] if text else "" for text in _texts(rows)]]


def _texts(rows: Rows) -> list[list[str]]:
    table = rows.reshape(len(rows), -1).tolist()
    return [[bytes(each[:_MOST_TEXT]).decode("utf-8", "replace") for each in row] for row in table]


_EXTRACTORS: Final[dict[str, Callable[[WatchedTensor, Rows], list[Column]]]] = {
    "numbers": _numbers,
    "summary": _summary,
    "picture": _picture,
    "vector": _vector,
    "classes": _classes,
    "text": _text,
    "labels": _labels,
}
