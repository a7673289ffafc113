"""Feedback as messages of the gRPC service `nereid.FeedbackService`."""

from typing import Any

from google.protobuf import json_format

from app.core.errors import invalid_arg
from app.core.feedback.figures import FeedbackFigures
from app.core.feedback.records import Feedback
from app.protocol.feedback import accepted_fields, figures_fields, parse_feedback
from nereid_client.feedback import messages


def decode_feedback(message: Any) -> tuple[Feedback, ...]:
    """Read the records of a `FeedbackRequest`.

    Raises:
        InferError: INVALID_ARG with the record and what is wrong with it.
    """
    return parse_feedback({"feedback": [_record(each) for each in message.feedback]})


def _record(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(message, name) for name in ("id", "row", "output")}
    if message.HasField("score"):
        fields["score"] = message.score
    for name in ("label", "outputs"):
        if message.HasField(name):
            try:
                fields[name] = messages.plain(getattr(message, name))
            except (json_format.Error, RecursionError) as error:
                text = str(error) or "it is nested too deeply"
                raise invalid_arg(f"invalid feedback: '{name}' cannot be read: {text}") from None
    return fields


def encode_accepted(model: str, records: int) -> Any:
    """Return a `FeedbackResponse`."""
    return messages.FeedbackResponse(**accepted_fields(model, records))


def encode_figures(model: str, figures: FeedbackFigures) -> Any:
    """Return a `FeedbackFiguresResponse`."""
    response = messages.FeedbackFiguresResponse()
    response.figures.update(figures_fields(model, figures))
    return response
