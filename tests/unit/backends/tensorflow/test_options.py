"""Parameters, settings and accelerators of TensorFlow models; no TensorFlow is needed for them."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.system.cpus import available_cpus
from backends.base import Instance, Model
from backends.tensorflow.options import (
    Accelerators,
    SessionSettings,
    default_batch,
    instances_per_session,
    platform,
    session_settings,
)
from tests.unit.backend_harness import config

SAVED = 'name: "m" platform: "tensorflow_savedmodel" '


def model(text: str = "", **settings: str) -> Model:
    keys = {key.replace("_", "-"): value for key, value in settings.items()}
    return Model(config(SAVED + text), 1, Path("nowhere"), keys)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def accelerator(text: str) -> str:
    return f"optimization {{ execution_accelerators {{ {text} }} }}"


def settings(text: str = "", kind: str = "CPU", device_id: int = 0, **values: str) -> SessionSettings:
    return session_settings(Instance(model(text, **values), "m_0_0", kind, device_id))


def refusal(text: str = "", kind: str = "CPU", **values: str) -> str:
    with pytest.raises(InferError) as caught:
        settings(text, kind, 0, **values)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_defaults() -> None:
    assert settings("instance_group { count: 2 kind: KIND_CPU }") == SessionSettings(
        intra_threads=max(1, available_cpus() // 2),
        inter_threads=-1,
        own_threads=False,
        jit_level=None,
        gpu=None,
        soft_placement=True,
        gpu_memory_fraction=0.0,
        accelerators=Accelerators(),
    )
    assert instances_per_session(model()) is None


def test_threads_are_those_of_the_parameters() -> None:
    threads = parameter("TF_NUM_INTRA_THREADS", "0") + parameter("TF_NUM_INTER_THREADS", "3")
    found = settings(threads + parameter("TF_USE_PER_SESSION_THREADS", "True"))
    assert (found.intra_threads, found.inter_threads, found.own_threads) == (0, 3, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameter("TF_NUM_INTRA_THREADS", "-1"),
            "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'm'",
        ),
        (
            parameter("TF_NUM_INTER_THREADS", "two"),
            "parameter 'TF_NUM_INTER_THREADS' of model 'm': failed to convert 'two' to integral number",
        ),
        (
            parameter("TF_USE_PER_SESSION_THREADS", "yes"),
            "parameter 'TF_USE_PER_SESSION_THREADS': failed to convert 'yes' to boolean",
        ),
        (
            accelerator('cpu_execution_accelerator { name: "openvino" }'),
            "CPU Execution Accelerator is not supported in TensorFlow backend",
        ),
    ],
)
def test_bad_value_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(("level", "jit"), [(-1, -1), (0, None), (1, 1), (2, 2), (7, 2)])
def test_graph_level_is_that_of_xla(level: int, jit: int | None) -> None:
    assert settings(f"optimization {{ graph {{ level: {level} }} }}").jit_level == jit


def test_graph_without_a_level_leaves_xla_alone() -> None:
    assert settings("optimization { }").jit_level is None


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("3", 3)])
def test_session_is_shared_by_as_many_instances(value: str, count: int) -> None:
    assert instances_per_session(model(parameter("MAX_SESSION_SHARE_COUNT", value))) == count


@pytest.mark.parametrize("value", ["0", "-2"])
def test_session_is_shared_by_a_positive_number(value: str) -> None:
    with pytest.raises(InferError) as caught:
        instances_per_session(model(parameter("MAX_SESSION_SHARE_COUNT", value)))
    assert caught.value.message == (
        "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'm'"
    )


def test_platform_is_one_of_two() -> None:
    assert platform(config(SAVED)) == "tensorflow_savedmodel"
    with pytest.raises(InferError) as caught:
        platform(config('name: "m" platform: "tensorflow_lite"'))
    assert caught.value.message == "platform tensorflow_lite not supported for TensorFlow model 'm'"


def test_device_is_that_of_the_instance() -> None:
    assert settings(kind="GPU", device_id=1).gpu == 1
    assert settings(kind="MODEL").gpu == -1


def test_settings_of_the_backend() -> None:
    found = settings(allow_soft_placement="false", gpu_memory_fraction="0.25")
    assert (found.soft_placement, found.gpu_memory_fraction) == (False, 0.25)
    for value in ("half", "1.5", "nan"):
        assert f"from 0 to 1, got '{value}'" in refusal(gpu_memory_fraction=value)


def test_default_batch_size() -> None:
    assert default_batch({}) == 4
    assert default_batch({"default-max-batch-size": "0"}) == 0
    with pytest.raises(InferError, match="must be an integer, got 'x'"):
        default_batch({"default-max-batch-size": "x"})


TENSORRT = 'gpu_execution_accelerator { name: "tensorrt" %s }'


def test_accelerators_of_a_gpu_instance() -> None:
    found = settings(
        accelerator(TENSORRT % 'parameters { key: "precision_mode" value: "FP16" }'), "GPU"
    ).accelerators
    assert found.tensorrt == {
        "precision_mode": "FP16",
        "minimum_segment_size": 3,
        "max_workspace_size_bytes": 1 << 30,
        "max_cached_engines": 100,
    }
    mixed = accelerator(
        'gpu_execution_accelerator { name: "gpu_io" } '
        'gpu_execution_accelerator { name: "auto_mixed_precision" }'
    )
    assert settings(mixed, "GPU").accelerators == Accelerators(None, True)


def test_accelerators_of_a_cpu_instance_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert settings(accelerator(TENSORRT % "")).accelerators == Accelerators()
    assert caplog.messages == ["GPU Execution Accelerator will be ignored for model instance on CPU"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('gpu_execution_accelerator { name: "xla" }', "unknown Execution Accelerator 'xla' is requested"),
        (
            TENSORRT % 'parameters { key: "workers" value: "1" }',
            "unknown parameter 'workers' is provided for TensorRT Execution Accelerator",
        ),
        (
            TENSORRT % 'parameters { key: "precision_mode" value: "INT8" }',
            "unsupported precision mode 'INT8' is requested",
        ),
        (
            TENSORRT % 'parameters { key: "max_cached_engines" value: "many" }',
            "failed to convert 'many' to long long integral number",
        ),
        (
            TENSORRT % "" + ' gpu_execution_accelerator { name: "auto_mixed_precision" }',
            "Auto mixed precision can not be set with TFTRT optimization",
        ),
    ],
)
def test_bad_accelerator_is_refused(text: str, message: str) -> None:
    assert refusal(accelerator(text), "GPU") == message
