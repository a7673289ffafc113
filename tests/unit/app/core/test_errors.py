"""Messages of errors are bounded, since they quote what clients sent."""

import logging

import msgspec

from app.core.errors import MAX_MESSAGE, ErrorCode, Failure, InferError, invalid_arg, shortened
from app.core.observability.log import TritonFormatter

LONG = "unexpected input '" + "x" * 10_000_000 + "' for model 'm'"


def test_shortened_text_keeps_beginning_and_end() -> None:
    assert shortened(LONG, 40) == "unexpected input 'x...xxx' for model 'm'"
    assert shortened("short", 5) == "short"
    assert shortened("longer", 5) == "l...r"


def test_message_of_a_failure_is_bounded() -> None:
    """However it is made, or received."""
    made = Failure(ErrorCode.INTERNAL, LONG)
    sent = msgspec.msgpack.encode(["INTERNAL", LONG, "OTHER"])
    for failure in (made, invalid_arg(LONG).failure, msgspec.msgpack.decode(sent, type=Failure)):
        assert len(failure.message) == MAX_MESSAGE
        assert failure.message.startswith("unexpected input 'xxx")
        assert failure.message.endswith("x' for model 'm'")
    assert len(str(InferError(ErrorCode.INTERNAL, LONG))) == MAX_MESSAGE


def test_log_line_is_bounded() -> None:
    record = logging.LogRecord("app", logging.ERROR, "file.py", 1, "%s", (LONG,), None)
    assert len(TritonFormatter().format(record)) < MAX_MESSAGE + 100
