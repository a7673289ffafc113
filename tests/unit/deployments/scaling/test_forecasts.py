"""How forecasts are kept, shown, and turned into replicas."""

import asyncio

import msgspec
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from deployments.parameters import ScalingBounds, replica_parameters
from deployments.scaling.forecast import DAY, SLOT_S, History
from deployments.scaling.forecasts import Forecasts, VersionForecast
from deployments.scaling.policy import Sample, ScalingPolicy
from tests.unit.deployments.scaling.test_autoscaler import spec

BOUNDS = ScalingBounds(16, forecast="scale")
IN_A_DAY = 3 * DAY * SLOT_S
"""A time at which three days are known."""


class Kept:
    """Keeps documents in this process."""

    def __init__(self, *documents: History) -> None:
        self.documents = {each.name: msgspec.json.encode(each) for each in documents}

    async def read(self) -> dict[str, History]:
        return {name: msgspec.json.decode(text, type=History) for name, text in self.documents.items()}

    async def write(self, name: str, small: bytes, whole: bytes) -> None:
        assert small == whole
        self.documents[name] = whole


class Clock:
    def __init__(self) -> None:
        self.now = IN_A_DAY

    def __call__(self) -> float:
        return self.now


def three_days() -> History:
    """A load of one replica, of seven from midnight on for an hour, to which an hour is missing."""
    needs = np.ones(3 * DAY, np.float32)
    needs.reshape(3, DAY)[:, :12] = 7.0
    return History("m", 1.0, 3 * DAY - 1, needs[: 3 * DAY].tobytes())


async def known(clock: Clock, bounds: ScalingBounds = BOUNDS) -> VersionForecast:
    forecasts = Forecasts(Kept(three_days()), clock)
    await forecasts.read()
    found = forecasts.version("m", bounds)
    assert found is not None
    return found


async def through(forecast: VersionForecast, clock: Clock, slots: int) -> None:
    """Let slots pass in the rhythm of before."""
    for _ in range(slots):
        need = 7.0 if int(clock.now // SLOT_S) % DAY < 12 else 1.0
        forecast.observe(Sample(8, executing=need))
        clock.now += SLOT_S
    await asyncio.sleep(0)


async def test_replicas_are_asked_for_before_they_are_needed() -> None:
    clock = Clock()
    forecast = await known(clock)
    await through(forecast, clock, DAY + 1)
    assert forecast.replicas(2, in_rollout=False) == 10, "seven at a target of 0.7"
    assert forecast.replicas(2, in_rollout=True) == 0
    text = forecast.outlook().text
    assert text.startswith("forecast 10 within 5 min, error ") and "not acted on" not in text
    assert forecast.outlook().replicas == 10


async def test_by_default_it_is_only_shown() -> None:
    clock = Clock()
    forecast = await known(clock, ScalingBounds(16))
    await through(forecast, clock, DAY)
    assert forecast.replicas(2, in_rollout=False) == 0
    assert forecast.outlook().text.endswith(", not acted on")
    assert Forecasts().version("m", ScalingBounds(16, forecast="off")) is None


async def test_slower_starts_are_looked_ahead_further() -> None:
    clock = Clock()
    forecast = await known(clock)
    assert forecast.ahead == 1
    forecast.timed(4, 2)
    clock.now += 500
    forecast.timed(4, 4)
    assert forecast.ahead == 4, "500 s and a half are three slots, and the present one"
    forecast.timed(4, 2)
    clock.now += 1e6
    forecast.timed(4, 4)
    assert forecast.ahead == 12


async def test_what_is_learnt_is_kept_when_a_slot_ends() -> None:
    clock, kept = Clock(), Kept()
    forecast = Forecasts(kept, clock).version("m", BOUNDS)
    assert forecast is not None
    await through(forecast, clock, 3)
    (history,) = (await kept.read()).values()
    assert (history.name, np.frombuffer(history.needs, np.float32).tolist()) == ("m", [7.0, 7.0])


def test_replicas_of_a_forecast_stay_while_it_lasts_and_double_at_most() -> None:
    policy = ScalingPolicy(BOUNDS, 2, 0.0)
    assert policy.expect(10, 100.0, "why")[:3] == (4, "forecast", "why")
    assert policy.expect(10, 101.0, "why").replicas == 4, "those that were asked for do not serve yet"
    assert policy.expect(10, 120.0, "why").replicas == 8
    assert policy.expect(100, 140.0, "why").replicas == 16, "of `max_replicas`"
    for second in range(141, 2000):
        policy.observe(Sample(policy.decision.replicas), second)
    assert policy.decision.replicas == 16
    policy.expect(0, 2000.0, "")
    for second in range(2000, 9000):
        policy.observe(Sample(policy.decision.replicas), second)
    assert policy.decision.replicas == 1


def test_memory_holds_for_a_forecast_too() -> None:
    policy = ScalingPolicy(BOUNDS, 2, 0.0)
    policy.observe(Sample(2, room=1), 1.0)
    assert policy.expect(10, 100.0, "why").replicas == 3
    policy.observe(Sample(3, room=0), 120.0)
    decision = policy.expect(10, 140.0, "why")
    assert decision[:2] == (3, "memory")
    assert decision.figures == "no memory for another replica: needed for a forecast"


def test_parameter_that_cannot_be_read_fails_the_load() -> None:
    config = mc.ModelConfig.FromString(spec(max_replicas="4", forecast="yes").config)
    with pytest.raises(InferError, match="parameter 'forecast' must be 'off', 'show' or 'scale', got 'yes'"):
        replica_parameters(config)
