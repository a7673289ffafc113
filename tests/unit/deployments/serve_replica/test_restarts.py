"""When a replica starts whose predecessors ended unexpectedly."""

import pytest

from app.ray_adapter import store
from deployments.serve_replica.restarts import Restarts, Run, next_run, pause
from deployments.spec import ModelSpec

SPEC = ModelSpec("m", 1, "", b"", "m:1", "", b"", loaded_at=1.0)


class Place:
    """Replicas that follow each other at one place of a model, in a world of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.values: dict[str, bytes] = {}
        self.told: list[str] = []
        monkeypatch.setattr(store, "read", self.values.get)
        monkeypatch.setattr(store, "write", self.values.__setitem__)
        monkeypatch.setattr(store, "remove", lambda key: self.values.pop(key, None))
        monkeypatch.setattr(Restarts, "_tell", lambda restarts, reason: self.told.append(reason))

    def start(self, spec: ModelSpec = SPEC, rank: int = 0) -> tuple[Restarts, float]:
        """Start a replica; also return the seconds that it waited."""
        began = self.now
        restarts = Restarts(spec, rank, lambda: self.now, self.sleep)
        restarts.wait()
        return restarts, self.now - began

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def crash(self, served: float = 0.0, loads: bool = True) -> float:
        """Start a replica that ends unexpectedly; return the seconds that it waited."""
        restarts, waited = self.start()
        if loads:
            restarts.loaded()
        self.now += served
        return waited


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def test_pauses_grow_to_a_minute() -> None:
    assert [pause(crashes) for crashes in range(11)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pause(100_000) == 60


def test_a_long_service_forgives_what_was_before() -> None:
    assert next_run(None, 100.0) == Run(0)
    assert next_run(Run(5, served_from=100.0), 160.0) == Run(6, ended=1)
    assert next_run(Run(5, served_from=100.0, ended=7), 161.0) == Run(1, ended=8)
    assert next_run(Run(5), 1000.0) == Run(6, ended=1)  # it was never loaded


def test_a_replica_that_keeps_dying_waits_longer_each_time(place: Place) -> None:
    assert [place.crash() for _ in range(6)] == [0, 0, 1, 2, 4, 8]
    assert place.told[0] == ("a replica has ended unexpectedly 2 times in a row; it is started again in 1 s")
    assert place.told[1] == "", "it is started"
    assert place.crash(served=61.0) == 16
    assert [place.crash() for _ in range(3)] == [0, 1, 2]


def test_a_replica_that_dies_while_it_loads_waits_too(place: Place) -> None:
    assert [place.crash(served=1000.0, loads=False) for _ in range(4)] == [0, 0, 1, 2]


def test_a_replica_that_ended_in_order_leaves_nothing(place: Place) -> None:
    place.crash()
    place.crash()
    restarts, _ = place.start()
    restarts.loaded()
    restarts.ended()
    assert place.values == {}
    assert place.crash() == 0


def test_all_unexpected_ends_are_counted(place: Place) -> None:
    counts = []
    for served in (0.0, 61.0, 0.0):
        restarts, _ = place.start()
        restarts.loaded()
        counts.append(restarts.count)
        place.now += served
    assert counts == [0, 1, 2]
    assert place.start()[0].count == 3


def test_loads_and_places_are_counted_apart(place: Place) -> None:
    for _ in range(3):
        place.crash()
    assert place.start(rank=1)[1] == 0
    again = ModelSpec("m", 1, "", b"", "m:1", "", b"", loaded_at=2.0)
    assert place.start(again)[1] == 0


def test_the_process_of_a_replica_starts_again_without_the_cluster(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts, _ = place.start()
    restarts.loaded()

    def away(*_: object) -> None:
        raise ConnectionError("the head is away")

    monkeypatch.setattr(store, "read", away)
    monkeypatch.setattr(store, "write", away)
    monkeypatch.setattr(Restarts, "_write_soon", lambda restarts: None)
    waited = []
    for expected in range(1, 5):
        began = place.now
        assert restarts.again() == expected
        waited.append(place.now - began)
        restarts.loaded_again()
    assert waited == [0, 1, 2, 4]
    assert place.told[-1] == "", "the manager hears that it serves again"
