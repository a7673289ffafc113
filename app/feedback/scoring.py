"""How well an answer of the tape agrees with what feedback says of it. Pure."""

import math
from typing import Any, Final

import numpy as np

from app.core.feedback.records import Feedback
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor

RTOL: Final = 1e-3
ATOL: Final = 1e-5
"""Floats of outputs are right within these."""

NO_ANSWER: Final = "the request failed"
STREAM: Final = "a stream has no single answer to compare"
NOT_KEPT: Final = "the tape does not have the output's values"
NO_OUTPUT: Final = "the answer has no such output"
WHICH: Final = "the answer has several outputs: name one in 'output'"
LABELS: Final = "not as many labels as rows"
KIND: Final = "the label is of another kind than the output"
SHAPE: Final = "the right output is of another shape"

_Array = np.ndarray[Any, Any]


class Unusable(ValueError):
    """Feedback that says nothing of its answer; the text is one of a few."""


def score_of(row: Row, feedback: Feedback) -> float:
    """Return the score of an answer, 0 to 1: the share of its rows, or right outputs, that agree.

    Raises:
        Unusable: it cannot be told.
    """
    if feedback.score is not None:
        return float(feedback.score)
    outputs = _outputs(row)
    if feedback.outputs is not None:
        found = [_agree(_named(outputs, name), right) for name, right in feedback.outputs.items()]
        return sum(found) / len(found)
    return _labelled(_named(outputs, feedback.output), feedback.label)


def _outputs(row: Row) -> dict[str, TapeTensor]:
    if row.failed or not row.responses:
        raise Unusable(NO_ANSWER)
    answers = [each for each in row.responses if each.outputs]
    if len(answers) > 1:
        raise Unusable(STREAM)
    return {tensor.name: tensor for each in answers for tensor in each.outputs}


def _named(outputs: dict[str, TapeTensor], name: str) -> TapeTensor:
    if name:
        if name not in outputs:
            raise Unusable(NO_OUTPUT)
        return outputs[name]
    if len(outputs) != 1:
        raise Unusable(WHICH if outputs else NO_OUTPUT)
    return next(iter(outputs.values()))


def _values(tensor: TapeTensor) -> _Array:
    if tensor.state != KEPT:
        raise Unusable(NOT_KEPT)
    try:
        return tensor.array()
    except TapeError:
        raise Unusable(NOT_KEPT) from None


def _labelled(tensor: TapeTensor, label: Any) -> float:
    labels = label if isinstance(label, list) else [label]
    if not labels:
        raise Unusable(LABELS)
    values = _values(tensor)
    found = _classes(values, len(labels))
    if len(found) != len(labels):
        raise Unusable(LABELS)
    return sum(map(_same, found, labels)) / len(labels)


def _classes(values: _Array, rows: int) -> list[Any]:
    """Return the class of each row: the place of the largest of several floats, else the value itself."""
    if values.size == rows:  # a value for each row: a class, a name, or how likely one of two is
        return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in _plain(values)]
    whole = values.ndim < 2 or values.shape[0] == rows
    if values.dtype.kind != "f" or not values.size or values.size % rows or not whole:
        raise Unusable(LABELS)
    return [int(number) for number in np.argmax(values.reshape(rows, -1), axis=1)]


def _plain(values: _Array) -> list[Any]:
    found: list[Any] = values.reshape(-1).tolist()
    return found


def _same(found: Any, label: Any) -> bool:
    if isinstance(found, str) != isinstance(label, str) or label is None or isinstance(label, list):
        raise Unusable(KIND)
    if isinstance(found, float):  # how likely one of two classes is, or a number
        if label in (0, 1) and 0 <= found <= 1:
            return (found >= 0.5) == bool(label)
        return math.isclose(found, label, rel_tol=RTOL, abs_tol=ATOL)
    return bool(found == label)


def _agree(tensor: TapeTensor, right: Any) -> bool:
    values = _values(tensor)
    if values.dtype == object:
        texts = [each.decode(errors="replace") for each in _plain(values)]
        return texts == _flat(right)
    try:
        expected = np.array(_flat(right), np.float64 if values.dtype.kind == "f" else values.dtype)
    except (TypeError, ValueError, OverflowError):
        raise Unusable(KIND) from None
    if expected.size != values.size:
        raise Unusable(SHAPE)
    found = values.reshape(-1)
    if values.dtype.kind != "f":
        return bool((found == expected).all())
    return bool(np.allclose(found.astype(np.float64), expected, RTOL, ATOL, equal_nan=True))


def _flat(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(reversed(each))
        else:
            found.append(each)
    return found
