"""The number of ingresses as nodes come and go, under a clock of the test."""

import threading
from collections.abc import Sequence

import pytest

from deployments.manager.serve import applications, nodes
from deployments.manager.serve.nodes import IngressCount, NodeWatch
from tests.waiting import until

INGRESS = ("nereid", "ingress")


def test_every_node_that_joins_gets_its_ingresses_at_once() -> None:
    count = IngressCount(per_node=2)
    assert [count.observe(seen, now) for seen, now in ((1, 0.0), (3, 1.0), (3, 2.0))] == [2, 6, 6]


def test_number_falls_when_a_loss_has_lasted() -> None:
    count = IngressCount(per_node=1)
    seen = ((3, 0.0), (2, 1.0), (2, 5.9), (2, 6.0))
    assert [count.observe(*each) for each in seen] == [3, 3, 3, 2]


def test_node_that_is_replaced_in_time_changes_nothing() -> None:
    count = IngressCount(per_node=1)
    seen = ((3, 0.0), (2, 1.0), (3, 4.0), (2, 7.0), (2, 11.0))
    assert {count.observe(*each) for each in seen} == {3}


class Cluster:
    """Takes the place of Ray and Serve; a poll is a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus: list[int] = [0]
        self.running = 1
        self.scaled: list[int] = []
        self.seen: list[Sequence[int]] = []
        self.failure = ""
        self._now = 0.0
        self._polls = 0
        monkeypatch.setattr(nodes, "gpus_by_node", lambda: list(self.gpus))
        monkeypatch.setattr(nodes, "scale_deployment", self._scale)
        monkeypatch.setattr(nodes, "poll_pause", self._pause)
        monkeypatch.setattr(nodes, "monotonic", lambda: self._now)
        monkeypatch.setattr(applications, "started_replicas", self._started)
        self.watch = NodeWatch(INGRESS, 1, self.seen.append)

    async def poll(self, times: int = 1) -> None:
        self._polls = times
        await self.watch.run(lambda: not self._polls)

    async def _pause(self, seconds: float) -> None:
        self._now += seconds
        self._polls -= 1

    async def _started(self, application: str, deployment: str) -> int:
        return self.running

    def _scale(self, application: str, deployment: str, replicas: int) -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        assert (application, deployment) == INGRESS
        self.scaled.append(replicas)
        self.running = replicas


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def test_serve_is_told_of_a_change_and_of_nothing_else(cluster: Cluster) -> None:
    await cluster.poll(20)
    assert cluster.scaled == []
    cluster.gpus = [0, 2]
    await cluster.poll(20)
    assert cluster.scaled == [2] and cluster.seen == [[0], [0, 2]]
    cluster.gpus = [0]
    await cluster.poll(20)
    assert cluster.scaled == [2, 1]


async def test_number_that_a_redeployment_reset_is_set_again(cluster: Cluster) -> None:
    cluster.gpus = [0, 0]
    await cluster.poll(3)
    cluster.running = 1
    await cluster.poll(5)
    assert cluster.scaled == [2, 2]


async def test_scaling_that_fails_is_logged_once_and_tried_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.gpus, cluster.failure = [0, 0], "external_scaler_enabled is false"
    await cluster.poll(4)
    assert [record.levelname for record in caplog.records if "every node" in record.message] == ["ERROR"]
    cluster.failure = ""
    await cluster.poll()
    assert cluster.scaled == [2]


async def test_ray_that_hangs_has_one_thread_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, answers, asked = Cluster(monkeypatch), threading.Event(), list[int]()

    def hangs() -> list[int]:
        asked.append(1)
        answers.wait()
        return [0, 0]

    monkeypatch.setattr(nodes, "ASK_S", 0.01)
    monkeypatch.setattr(nodes, "gpus_by_node", hangs)
    await cluster.poll(5)
    assert len(asked) == 1 and cluster.seen == []
    assert "cannot run an ingress on every node: no answer in 0.01 s" in caplog.text
    answers.set()
    monkeypatch.setattr(nodes, "ASK_S", 30.0)
    await until(lambda: not cluster.watch._ray.hangs)
    await cluster.poll()
    assert cluster.seen == [[0, 0]]
