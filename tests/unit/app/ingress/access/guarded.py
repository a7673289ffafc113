"""Fronts that ask for tokens."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http

from app.access.audit import Audit
from app.access.grants import Grants
from app.access.tokens import make_token
from app.ingress.access.guard import Guard
from tests.unit.app.ingress.running_fronts import Fronts, Running

MODULES: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
TOKENS = (
    make_token("all", name="all", scope=("infer", "manage", "metrics")),
    make_token("infer", name="infer", scope=("infer",), models=("id*",)),
    make_token("other", name="other-models", scope=("infer", "manage"), models=("b",)),
    make_token("manage", name="manage", scope=("manage",)),
    make_token("feedback", name="feedback", scope=("feedback",)),
    make_token("slow", name="slow", scope=("infer",), rate="2/h"),
    make_token("single", name="single", scope=("infer",), concurrency=1),
)


def of(secret: str) -> dict[str, str]:
    """The headers of a client."""
    return {"authorization": f"Bearer {secret}"}


@contextmanager
def guarded(fronts: Fronts, **args: Any) -> Iterator[tuple[Running, Grants]]:
    """Open fronts that know `TOKENS`, and audit to the log."""
    grants = Grants(TOKENS)
    with fronts(guard=Guard(grants, Audit()), **args) as running:
        yield running, grants


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the audit so far, without what differs from run to run."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    found = [json.loads(text.removeprefix("audit ")) for text in texts if text.startswith("audit {")]
    for line in found:
        assert line.pop("time") and line.pop("peer").startswith("127.0.0.1:")
    return found
