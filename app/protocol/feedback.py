"""Feedback as both APIs carry it: records of a request, and the answers."""

import math
from typing import Any, Final

import msgspec

from app.core.errors import InferError, invalid_arg
from app.core.feedback.figures import FeedbackFigures, Scores
from app.core.feedback.records import MAX_RECORD_BYTES, MAX_RECORDS, Feedback

_KEY: Final = "feedback"
_SAYS: Final = ("score", "label", "outputs")
_FORM: Final = 'give {"feedback": [{"id": "REQUEST", "label": 3}, ...]}, or one such record alone'


def parse_feedback(document: Any) -> tuple[Feedback, ...]:
    """Read the records of a request: a list in the field `feedback`, or the fields of one.

    Raises:
        InferError: INVALID_ARG with the record and what is wrong with it.
    """
    if not isinstance(document, dict):
        raise invalid_arg(f"invalid feedback: {_FORM}")
    if _KEY not in document:
        return (_record(document, "feedback"),)
    others = sorted(document.keys() - {_KEY})
    if others:
        raise invalid_arg(f"invalid feedback: unknown field '{others[0]}' beside 'feedback'; {_FORM}")
    records = document[_KEY]
    if not isinstance(records, list) or not records:
        raise invalid_arg(f"invalid feedback: 'feedback' is no list of records; {_FORM}")
    if len(records) > MAX_RECORDS:
        text = f"{len(records)} records are more than the {MAX_RECORDS} of one request"
        raise invalid_arg(f"invalid feedback: {text}; send several requests")
    return tuple(_record(fields, f"feedback[{number}]") for number, fields in enumerate(records))


def _record(fields: Any, place: str) -> Feedback:
    try:
        record = msgspec.convert(fields, Feedback)
        size = len(msgspec.msgpack.encode(record))
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
        raise _wrong(place, str(error)) from None
    if bool(record.id) == bool(record.row):
        raise _wrong(place, "it needs either the 'id' of a request or the 'row' of a tape")
    said = [name for name in _SAYS if getattr(record, name) is not None]
    if len(said) != 1:
        raise _wrong(place, "it needs one of 'label', 'outputs' and 'score'")
    if record.outputs is not None and (record.output or not record.outputs):
        raise _wrong(place, "'outputs' has outputs by name, and goes without 'output'")
    if size > MAX_RECORD_BYTES:
        raise _wrong(place, f"its {size} bytes are more than the {MAX_RECORD_BYTES} of a record")
    _check_values(record.label if record.outputs is None else list(record.outputs.values()), place)
    return record


def _check_values(value: Any, place: str) -> None:
    """Check that a label, or outputs, have plain values in lists of any depth that JSON was read to."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, float) and not math.isfinite(each):
            raise _wrong(place, "a value is not finite")
        elif not (each is None or isinstance(each, bool | int | float | str)):
            raise _wrong(place, "a label or value is a number, a text, or a list of them")


def _wrong(place: str, text: str) -> InferError:
    return invalid_arg(f"invalid feedback: {place}: {text}")


def accepted_fields(model: str, records: int) -> dict[str, Any]:
    """Return the answer to a request with so many records."""
    return {"model_name": model, "accepted": records}


def figures_fields(model: str, figures: FeedbackFigures) -> dict[str, Any]:
    """Return what both APIs say of the feedback of a model."""
    return {
        "model_name": model,
        "received": figures.received,
        "versions": [_version(name, scores) for name, scores in figures.versions.items()],
        "again": figures.again,
        "unknown": figures.unknown,
        "unusable": figures.unusable,
        "waiting": figures.waiting,
    }


def _version(version: str, scores: Scores) -> dict[str, Any]:
    mean = scores.mean
    fields: dict[str, Any] = {"version": version, "scored": scores.number}
    if mean is not None:
        fields |= {"score": mean.value, "low": mean.low, "high": mean.high, "accuracy": scores.binary}
    return fields
