"""What a model's configuration says about its replicas, and what is refused."""

import re

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.ray_adapter.serve.placement import placeable
from deployments.builder import options
from deployments.parameters import ReplicaParameters, ScalingBounds, replica_parameters
from deployments.spec import ModelSpec


def config(more: str = "", **parameters: str) -> mc.ModelConfig:
    found = text_format.Parse(f'name: "m" {more}', mc.ModelConfig())
    for name, value in parameters.items():
        found.parameters[name].string_value = value
    return found


def test_one_constant_replica_that_reserves_nothing_is_the_default() -> None:
    assert replica_parameters(config()) == ReplicaParameters(1, None, {}, 0.0, 0)
    assert replica_parameters(config(ray_replicas="3")).replicas == 3


def test_scaling_bounds_have_defaults() -> None:
    assert replica_parameters(config(max_replicas="4")).scaling == ScalingBounds(4, 1, 0.7, 20.0, 0.0)
    slow = config("dynamic_batching { max_queue_delay_microseconds: 50000 }", max_replicas="4")
    assert replica_parameters(slow).scaling == ScalingBounds(4, 1, 0.7, 100.0, 0.0)
    own = {"target_load": "0.5", "max_queue_ms": "7.5", "idle_seconds": "60"}
    given = config(max_replicas="9", min_replicas="0", **own)
    assert replica_parameters(given).scaling == ScalingBounds(9, 0, 0.5, 7.5, 60.0)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"ray_replicas": "0"}, "'ray_replicas' must be a positive number, got '0'"),
        ({"ray_replicas": "two"}, "'ray_replicas' must be a positive number, got 'two'"),
        ({"ray_replicas": ""}, "'ray_replicas' must be a positive number, got ''"),
        ({"ray_resources": "[]"}, "'ray_resources' must be a JSON object of numbers"),
        ({"ray_placement": "far"}, "'ray_placement' must be 'spread' or 'pack', got 'far'"),
        ({"ray_num_cpus": "-1"}, "'ray_num_cpus' must be a number of processors, such as 0.5, got '-1'"),
        ({"ray_memory_bytes": "1G"}, "'ray_memory_bytes' must be a positive number of bytes, got '1G'"),
        ({"max_replicas": "0"}, "'max_replicas' must be a positive number, got '0'"),
        ({"max_replicas": "1001"}, "'max_replicas' is 1001, at most 1000 are supported"),
        ({"max_replicas": "2", "min_replicas": "3"}, "'min_replicas' (3) is above 'max_replicas' (2)"),
        ({"max_replicas": "2", "min_replicas": "-1"}, "'min_replicas' must be a number from 0 on, got '-1'"),
        ({"max_replicas": "2", "min_replicas": "0"}, "may be 0 only with 'idle_seconds' above 0"),
        (
            {"max_replicas": "2", "idle_seconds": "60"},
            "'idle_seconds' has no effect unless 'min_replicas' is 0",
        ),
        (
            {"max_replicas": "2", "idle_seconds": "inf"},
            "'idle_seconds' must be a number of seconds, got 'inf'",
        ),
        (
            {"max_replicas": "2", "target_load": "0"},
            "'target_load' must be a number above 0, up to 1, got '0'",
        ),
        ({"max_replicas": "2", "target_load": "70"}, "must be a number above 0, up to 1, got '70'"),
        ({"max_replicas": "2", "max_queue_ms": "nan"}, "must be a number of milliseconds, got 'nan'"),
        ({"min_replicas": "2"}, "'min_replicas' has no effect without 'max_replicas'"),
        ({"max_replicas": "2", "ray_replicas": "2"}, "give one of them"),
    ],
)
def test_mistake_is_named(parameters: dict[str, str], text: str) -> None:
    with pytest.raises(InferError, match=f"model 'm': .*{re.escape(text)}") as raised:
        replica_parameters(config(**parameters))
    assert raised.value.code is ErrorCode.INVALID_ARG


def spec(replicas: int = 0, **parameters: str) -> ModelSpec:
    serialised = config(**parameters).SerializeToString()
    return ModelSpec("m", 1, "", serialised, "m:1", "", b"", replicas=replicas)


def test_replica_reserves_what_the_model_states() -> None:
    reserved = options(spec(ray_num_cpus="0.5", ray_memory_bytes="1000000", ray_resources='{"worker": 1}'))
    expected = {"num_cpus": 0.5, "memory": 1000000, "resources": {"worker": 1.0, **placeable(False)}}
    assert reserved["ray_actor_options"] == expected
    assert options(spec())["ray_actor_options"] == {
        "num_cpus": 0.0,
        "resources": placeable(False),
    }
    packed = options(spec(ray_placement="pack"))["ray_actor_options"]
    assert packed["resources"] == placeable(True) != placeable(False)


def test_candidate_starts_with_the_replicas_of_its_first_step() -> None:
    def started(before: int, percent: float, **parameters: str) -> int:
        part = msgspec.structs.replace(spec(before, **parameters), percent=percent)
        return int(options(part)["num_replicas"])

    percents = (0, 1, 25, 26, 50, 100)
    assert [started(0, percent, ray_replicas="4") for percent in percents] == [1, 1, 1, 2, 2, 4]
    assert [started(6, percent, max_replicas="8") for percent in (0, 1, 25, 50, 100)] == [1, 1, 2, 3, 6]
    assert started(6, 1, max_replicas="8", min_replicas="2") == 2
    assert started(6, 100, max_replicas="4") == 4


def test_redeployment_keeps_the_number_of_a_scaled_model() -> None:
    def started(before: int, **parameters: str) -> int:
        return int(options(spec(before, **parameters))["num_replicas"])

    assert started(3, max_replicas="4") == 3
    assert started(9, max_replicas="4") == 4
    assert started(0, max_replicas="4") == 1
    assert started(1, max_replicas="4", min_replicas="2") == 2
    assert started(0, max_replicas="4", min_replicas="0", idle_seconds="1") == 1, "it must be seen to load"
    assert started(3, ray_replicas="2") == 2
