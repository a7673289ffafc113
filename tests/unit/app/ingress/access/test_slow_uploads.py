"""Slow uploads of clients with tokens."""

import pytest

from app.ingress.net import listener
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.access.guarded import guarded, of
from tests.unit.app.ingress.http2.raw_client import Raw, decoded
from tests.unit.app.ingress.running_fronts import Fronts


def test_a_call_without_its_request_is_refused(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_CHECK_INTERVAL_S", 0.005)
    with guarded(fronts, grpc_read_timeout_secs=0.05) as (running, _):
        raw = Raw(int(running.grpc.rpartition(":")[2]))
        block = raw.encoder.encode(
            [
                (":method", "POST"),
                (":path", "/inference.GRPCInferenceService/ModelInfer"),
                ("content-type", "application/grpc"),
                *of("infer").items(),
            ]
        )
        raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
        frames = raw.frames(lambda frame: frame.kind == h2.HEADERS)
        assert dict(decoded(frames[-1].payload))["grpc-status"] == "4"
        raw.socket.close()
