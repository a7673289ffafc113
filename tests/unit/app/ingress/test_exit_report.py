"""What a stopping server says it waits for."""

from app.ingress.exit_report import waiting_lines
from tests.unit.app.http_fakes import FakeService


def test_connections_and_requests_in_flight_are_told() -> None:
    entry = FakeService().resolve("identity")
    connections = {"HTTP service connections": 2, "gRPC service connections and inference handlers": 0}
    assert list(waiting_lines(7, connections, [(entry, 3)])) == [
        "Timeout 7: Found 2 HTTP service connections",
        "Timeout 7: Found 1 model versions that have in-flight inferences",
        "Model 'identity' (version 1) has 3 in-flight inferences",
    ]


def test_nothing_to_wait_for_is_not_told() -> None:
    assert not list(waiting_lines(7, {"HTTP service connections": 0}, []))
