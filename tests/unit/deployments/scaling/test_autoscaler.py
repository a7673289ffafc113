"""The loop that scales versions: what it asks, tells Serve and shows."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import unavailable
from app.ray_adapter.serve.applications import ReplicaCounts
from app.routing.scale import Scale
from deployments.scaling import autoscaler
from deployments.scaling.autoscaler import Autoscaler
from deployments.scaling.forecast import DAY, SLOT_S, Forecaster, History, Score
from deployments.scaling.forecasts import Forecasts
from deployments.scaling.policy import PERIOD_S
from deployments.spec import LOAD, ModelSpec, ReplicaLoad

IDLE = ReplicaLoad(0, 0, 0, 0, 0, 0, {}, 0, 0, 1, False, 0, "n", 100, 100_000)
FULL = msgspec.structs.replace(IDLE, free_bytes=100)


def spec(application: str = "m:1", **parameters: str) -> ModelSpec:
    config = text_format.Parse('name: "m"', mc.ModelConfig())
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return ModelSpec("m", 1, "", config.SerializeToString(), application, "", b"")


class FakeChannel:
    """A replica: `busy` requests execute and `queued` wait, all the time."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.draining = False
        self.suspected = ""
        self.failure: Exception | None = None
        self.busy = self.queued = 0

    async def control(self, verb: str, payload: object, timeout: float) -> Any:
        assert (verb, payload, timeout) == (LOAD, None, 1.0)
        if self.failure is not None:
            raise self.failure
        now = int(self.cluster.now * 1e9)
        queued = {"waiting_ns": now * self.queued, "oldest_ns": int(1e9) * bool(self.queued)}
        report = msgspec.structs.replace(
            IDLE, at_ns=now, executing_ns=now * self.busy, in_flight=self.busy + self.queued, **queued
        )
        return msgspec.to_builtins(report)


class Cluster:
    """Takes the place of Serve and of the router; a pause of the loop is its period."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *specs: ModelSpec, forecasts: Forecasts | None = None
    ) -> None:
        self.now = 1000.0
        self.loaded = {spec.application: spec for spec in specs}
        self.told: dict[str, int | None] = dict.fromkeys(self.loaded, 1)
        self.channels = {spec.application: [FakeChannel(self)] for spec in specs}
        self.calls: list[tuple[str, str, int]] = []
        self.shown: list[tuple[str, Scale]] = []
        self.closed: list[str] = []
        self.rollouts: set[str] = set()
        self.failure = ""
        self._ticks = 0
        monkeypatch.setattr(autoscaler, "monotonic", lambda: self.now)
        monkeypatch.setattr(autoscaler, "poll_pause", self._pause)
        monkeypatch.setattr(autoscaler, "gpus_by_node", lambda: [0])
        monkeypatch.setattr(autoscaler, "scale_deployment", self._scale)
        monkeypatch.setattr(autoscaler, "replica_counts", self._counts)
        router: Any = self
        self.scaler = Autoscaler(self, lambda: router, self.rollouts.__contains__, forecasts)

    async def run(self, ticks: int = 1) -> None:
        self._ticks = ticks
        await self.scaler.run(lambda: not self._ticks)

    def open_control_pool(self, deployment: str, application: str) -> Any:
        return SimpleNamespace(channels=self.channels[application])

    def close_control_pool(self, application: str) -> None:
        self.closed.append(application)

    async def _pause(self, seconds: float) -> None:
        assert seconds == PERIOD_S
        self.now += seconds
        self._ticks -= 1

    async def change_served(self, application: str, *, scale: Scale) -> None:
        self.shown.append((application, scale))

    async def publish_and_wait(self) -> None:
        await self.on_settle()

    async def on_settle(self) -> None:
        """Have every ingress route by what was published."""
        assert self.shown[-1][1].asleep and self.told["m:1"], "Serve is told when requests know to wait"

    def _counts(self, application: str, deployment: str) -> ReplicaCounts | None:
        told = self.told[application]
        return None if told is None else ReplicaCounts(told, len(self.channels[application]))

    def _scale(self, application: str, deployment: str, replicas: int) -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        self.calls.append((application, deployment, replicas))
        self.told[application] = replicas


async def test_only_versions_that_ask_for_it_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec("m:1", max_replicas="4"), spec("n:1", ray_replicas="2"))
    await cluster.run(2)
    assert cluster.shown == [("m:1", Scale(1, "start", most=4))] and cluster.calls == []


async def test_serve_is_told_once_of_a_change_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster = Cluster(monkeypatch, spec(max_replicas="4"))
    replica = cluster.channels["m:1"][0]
    replica.busy, replica.queued = 1, 5
    await cluster.run(10)
    assert cluster.calls == [("m:1", "m", 2)]
    application, scale = cluster.shown[-1]
    assert (application, scale.wanted, scale.reason, scale.changes) == ("m:1", 2, "queue", {"queue": 1})
    assert scale.figures == "load 1.00 (target 0.7), queue 1000 ms"
    expected = "scaling 'm' version 1 from 1 to 2 replicas (queue: load 1.00 (target 0.7), queue 1000 ms)"
    assert caplog.messages == [expected]


async def test_change_that_serve_refuses_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(monkeypatch, spec(max_replicas="4"))
    cluster.channels["m:1"][0].busy, cluster.channels["m:1"][0].queued = 1, 5
    cluster.failure = "no controller"
    await cluster.run(6)
    assert cluster.calls == [] and caplog.messages == ["cannot scale 'm:1': RuntimeError('no controller')"]
    cluster.failure = ""
    await cluster.run(2)
    assert cluster.calls == [("m:1", "m", 2)], "without asking Serve first what it was told"


async def test_number_that_a_redeployment_told_serve_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(max_replicas="4", min_replicas="2"))
    await cluster.run(2)
    assert cluster.calls == [("m:1", "m", 2)], "never below the fewest"
    cluster.told["m:1"] = 9
    await cluster.run(25)
    assert cluster.calls[1:] == [("m:1", "m", 4)], "nor above the most"


async def test_replica_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(max_replicas="4"))
    cluster.told["m:1"] = 2
    silent = FakeChannel(cluster)
    silent.failure = unavailable("it is gone")
    cluster.channels["m:1"].append(silent)
    cluster.channels["m:1"][0].busy = 1
    await cluster.run(100)
    assert cluster.calls == [("m:1", "m", 3)], "two replicas' places are in use, as far as is known"


async def test_another_load_of_a_version_is_followed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(max_replicas="4"))
    await cluster.run()
    again = msgspec.structs.replace(spec(max_replicas="4", min_replicas="3"), loaded_at=5.0)
    cluster.loaded["m:1"] = again
    await cluster.run(2)
    assert cluster.closed == ["m:1"] and cluster.calls == [("m:1", "m", 3)]


async def test_versions_that_are_unloaded_or_gone_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec("m:1", max_replicas="4"), spec("n:1", max_replicas="4"))
    cluster.told["n:1"] = None
    await cluster.run()
    assert [application for application, _ in cluster.shown] == ["m:1"]
    del cluster.loaded["m:1"]
    await cluster.run()
    assert cluster.closed == ["m:1"]


IDLE_AFTER_2S = {"max_replicas": "4", "min_replicas": "0", "idle_seconds": "2", "target_load": "1"}


async def test_idle_version_sleeps_until_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(**IDLE_AFTER_2S))
    (replica,) = cluster.channels["m:1"]
    await cluster.run(6)
    assert cluster.calls == [("m:1", "m", 0)]
    assert cluster.shown[-1][1] == Scale(0, "idle", "no request for 2 s", {"idle": 1}, asleep=True, most=4)
    cluster.channels["m:1"].clear()
    assert await cluster.scaler.request("m")
    assert cluster.calls[1:] == [("m:1", "m", 1)]
    assert cluster.shown[-1][1].reason == "request" and cluster.shown[-1][1].asleep, "it only starts"
    await cluster.run(10)
    cluster.channels["m:1"].append(replica)
    replica.busy = 1
    await cluster.run(10)
    assert cluster.shown[-1][1].asleep, "an ingress may not have reached it yet"
    await cluster.run(2)
    assert not cluster.shown[-1][1].asleep and len(cluster.calls) == 2


async def test_no_replica_ends_while_its_model_has_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(**IDLE_AFTER_2S))
    cluster.told["m:1"] = 2
    cluster.channels["m:1"].append(FakeChannel(cluster))
    cluster.rollouts.add("m")
    await cluster.run(1500)
    assert cluster.calls == []
    cluster.rollouts.clear()
    await cluster.run(6)
    assert cluster.calls == [("m:1", "m", 0)]


async def test_request_that_arrives_while_the_last_replica_is_to_end_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, spec(**IDLE_AFTER_2S))

    async def ask() -> None:
        assert await cluster.scaler.request("m")

    cluster.on_settle = ask  # type: ignore[method-assign]
    await cluster.run(6)
    assert [replicas for *_, replicas in cluster.calls] == [1]
    cluster.channels["m:1"][0].busy = 1
    await cluster.run(11)
    assert not cluster.shown[-1][1].asleep


async def test_request_for_a_model_that_is_not_scaled_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec("m:1", max_replicas="2"), spec("n:1"))
    await cluster.run()
    assert not await cluster.scaler.request("other")
    assert await cluster.scaler.request("m") and cluster.calls == [], "it has a replica already"


async def test_restarted_manager_finds_a_version_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, spec(**IDLE_AFTER_2S))
    cluster.told["m:1"] = 0
    cluster.channels["m:1"].clear()
    await cluster.run(2)
    assert cluster.shown == [("m:1", Scale(0, "start", asleep=True, most=4))] and cluster.calls == []


async def test_a_candidate_gets_its_part_of_the_stable_versions_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidate = msgspec.structs.replace(spec("m:2", max_replicas="8"), version=2)
    cluster = Cluster(monkeypatch, spec("m:1", max_replicas="8"), candidate)
    cluster.told["m:1"] = 6
    cluster.rollouts.add("m")
    await cluster.run(2)
    assert await cluster.scaler.missing("m", (1, 2), 10) == "" and cluster.calls == []
    assert await cluster.scaler.missing("m", (1, 2), 50) == "1 of 3 replicas of the candidate run"
    assert cluster.calls == [("m:2", "m", 3)]
    shown = Scale(3, "rollout", "for its part of the requests", {"rollout": 1}, most=8)
    assert cluster.shown[-1] == ("m:2", shown)
    cluster.channels["m:2"] += [FakeChannel(cluster), FakeChannel(cluster)]
    assert await cluster.scaler.missing("m", (1, 2), 50) == "" and len(cluster.calls) == 1
    await cluster.run(30)
    assert len(cluster.calls) == 1, "its own load does not take them away"


async def test_a_candidate_gets_no_replicas_beyond_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = msgspec.structs.replace(spec("m:2", max_replicas="8"), version=2)
    cluster = Cluster(monkeypatch, spec("m:1", max_replicas="8"), candidate)
    monkeypatch.setitem(cluster.told, "m:1", 6)
    monkeypatch.setattr("tests.unit.deployments.scaling.test_autoscaler.IDLE", FULL)
    await cluster.run(3)
    assert await cluster.scaler.missing("m", (1, 2), 50) == "1 of 3 replicas of the candidate run"
    assert cluster.calls == [] and cluster.shown[-1][1].reason == "memory"


async def test_a_candidate_with_a_constant_number_of_replicas_gets_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidate = msgspec.structs.replace(spec("m:2", ray_replicas="4"), version=2)
    cluster = Cluster(monkeypatch, spec("m:1", ray_replicas="4"), candidate)
    assert await cluster.scaler.missing("m", (1, 2), 75) == "1 of 3 replicas of the candidate run"
    assert cluster.calls == [("m:2", "m", 3)]
    cluster.told["m:2"] = None
    assert await cluster.scaler.missing("m", (1, 2), 100) == "", "it is being deleted"


class FourDays:
    """Keeps four days of a load of one replica, of three in the second slot of each day."""

    async def read(self) -> dict[str, History]:
        needs = np.ones((4, DAY), np.float32)
        needs[:, 1] = 3.0
        return {"m": History("m", 1.0, 4 * DAY - 1, needs.tobytes())}

    async def write(self, name: str, small: bytes, whole: bytes) -> None:
        pass


async def test_replicas_of_a_forecast_start_ahead_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 4 * DAY * SLOT_S
    forecasts = Forecasts(FourDays(), lambda: now)
    monkeypatch.setattr(Forecaster, "_score", lambda _: Score(0.1, 0.2))  # of days that were not seen here
    wanted = spec(max_replicas="8", forecast="scale", target_load="1")
    cluster = Cluster(monkeypatch, wanted, forecasts=forecasts)
    cluster.channels["m:1"][0].busy = 1
    await cluster.run(40)
    assert cluster.calls == []
    now += SLOT_S
    await cluster.run(2)
    assert cluster.calls == [("m:1", "m", 2)], "three are expected: the number at most doubles"
    text = "forecast 3 within 5 min, error 10.0% (of the last value 20.0%)"
    assert cluster.shown[-1][1].reason == "forecast"
    assert cluster.shown[-1][1].outlook.text == cluster.shown[-1][1].figures == text
