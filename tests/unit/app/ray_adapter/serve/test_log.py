"""What Serve does not log."""

import logging
from collections.abc import Iterator

import pytest

from app.core.errors import InferError, invalid_arg
from app.ray_adapter.serve.log import omit_failures


@pytest.fixture
def serve_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("ray.serve")
    before = list(logger.filters)
    yield logger
    logger.filters[:] = before


def test_refused_calls_leave_no_traceback(
    serve_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    omit_failures(InferError)
    serve_logger.addHandler(caplog.handler)
    for error in (invalid_arg("a refused load"), KeyError("a defect")):
        try:
            raise error
        except Exception:
            serve_logger.exception("Request failed.")
    serve_logger.error("no exception")
    serve_logger.removeHandler(caplog.handler)
    assert "a defect" in caplog.text and "no exception" in caplog.text
    assert "a refused load" not in caplog.text
