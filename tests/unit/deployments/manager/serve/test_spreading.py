"""Replicas that are moved to nodes which came later, under a clock of the test."""

from collections.abc import Mapping

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.ray_adapter.serve.applications import Replicas
from deployments.manager.serve import spreading
from deployments.manager.serve.spreading import LOOK_S, Spreading, is_uneven
from deployments.spec import ModelSpec


@pytest.mark.parametrize(
    ("nodes", "free", "uneven"),
    [("aa", "ab", True), ("ab", "ab", False), ("aab", "ab", False), ("aab", "abc", True), ("aa", "a", False),
     ("aab", "ab", False), ("aaab", "ab", True), ("aa", "", False), ("", "ab", False), ("ab", "abc", False)],
)  # fmt: skip
def test_replicas_are_uneven_if_a_move_spreads_them_better(nodes: str, free: str, uneven: bool) -> None:
    assert is_uneven(nodes, free) is uneven


class Cluster:
    """Takes the place of Ray and Serve: a model with two replicas, both on node `a`; a look is `LOOK_S`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        parameters: Mapping[str, str] | None = None,
        sequences: bool = False,
    ) -> None:
        config = mc.ModelConfig(name="m", sequence_batching=mc.ModelSequenceBatching() if sequences else None)
        for name, value in {"ray_replicas": "2", **(parameters or {})}.items():
            config.parameters[name].string_value = value
        self.spec = ModelSpec("m", 1, "", config.SerializeToString(), "m:1", "", b"")
        self.free: dict[str, dict[str, float]] = {"a": {}, "b": {}}
        self.nodes, self.target, self.goes_to = ["a", "a"], 2, "b"
        self.scaled: list[int] = []
        self._now = 0.0
        self._looks = 0
        monkeypatch.setattr(spreading, "free_resources", lambda: self.free)
        monkeypatch.setattr(spreading, "replicas_by_deployment", self._placed)
        monkeypatch.setattr(spreading, "scale_deployment", self._scale)
        monkeypatch.setattr(spreading, "poll_pause", self._pause)
        monkeypatch.setattr(spreading, "monotonic", lambda: self._now)
        self.spreading = Spreading(lambda: {"m:1": self.spec})

    async def look(self, times: int = 10) -> None:
        self._looks = times
        await self.spreading.run(lambda: not self._looks)

    async def _pause(self, seconds: float) -> None:
        assert seconds == LOOK_S
        self._now += seconds
        self._looks -= 1

    def _placed(self) -> Mapping[tuple[str, str], Replicas]:
        return {("m:1", "m"): Replicas(self.target, len(self.nodes), tuple(self.nodes))}

    def _scale(self, application: str, deployment: str, replicas: int) -> None:
        assert (application, deployment) == ("m:1", "m")
        self.scaled.append(replicas)
        if self.goes_to and replicas > len(self.nodes):
            self.nodes.append(self.goes_to)
        elif replicas < len(self.nodes):
            self.nodes.remove(max(self.nodes, key=self.nodes.count))
        self.target = replicas


async def test_replica_moves_when_the_nodes_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    await cluster.look()
    assert cluster.scaled == []
    cluster.spreading.nodes_changed()
    await cluster.look()
    assert cluster.scaled == [3, 2] and sorted(cluster.nodes) == ["a", "b"]


@pytest.mark.parametrize(
    "parameters", [{"ray_placement": "pack"}, {"ray_resources": '{"seat": 1}'}, {"ray_num_cpus": "1"}]
)
async def test_replicas_that_are_packed_or_have_no_room_stay(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, str]
) -> None:
    cluster = Cluster(monkeypatch, parameters)
    cluster.spreading.nodes_changed()
    await cluster.look()
    assert cluster.scaled == []


async def test_model_with_sequences_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, sequences=True)
    cluster.spreading.nodes_changed()
    await cluster.look()
    assert cluster.scaled == []


async def test_moves_in_vain_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.goes_to = "a"
    cluster.spreading.nodes_changed()
    await cluster.look(40)
    assert cluster.scaled == [3, 2, 3, 2]


async def test_move_whose_replica_does_not_start_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.goes_to = ""
    cluster.spreading.nodes_changed()
    await cluster.look(400)
    assert cluster.scaled == [3, 2]


async def test_move_that_an_earlier_manager_began_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.nodes, cluster.target = ["a", "a", "b"], 3
    cluster.spreading.nodes_changed()
    await cluster.look()
    assert cluster.scaled == [2] and sorted(cluster.nodes) == ["a", "b"]


async def test_number_that_another_has_changed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.goes_to = ""
    cluster.spreading.nodes_changed()
    await cluster.look(2)
    cluster.target = 5
    await cluster.look(2)
    assert cluster.scaled == [3]
