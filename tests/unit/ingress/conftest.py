"""Fixtures of the fronts' tests."""

from dataclasses import replace
from typing import Any

import pytest

from app.ingress.grpc.front import GrpcFront
from app.ingress.grpc.settings import GrpcSettings


@pytest.fixture(params=["http2", "grpcio"])
def either_grpc_front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test over the server of our own and over the grpcio package's."""
    made = GrpcFront.__init__

    def make(front: GrpcFront, service: Any, settings: GrpcSettings | None = None, *others: Any) -> None:
        made(front, service, replace(settings or GrpcSettings(), http2=request.param == "http2"), *others)

    monkeypatch.setattr(GrpcFront, "__init__", make)
