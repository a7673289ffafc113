"""Parameters of a configuration as properties of a compiled model."""

from pathlib import Path

import pytest

from app.core.errors import InferError
from app.core.system.cpus import available_cpus
from backends.openvino.properties import compile_properties, flag, target_device
from tests.unit.backends.openvino.networks import model, parameters


def properties(text: str = "", **values: str) -> dict[str, object]:
    return compile_properties(model(Path("nowhere"), text + parameters(**values)))


def test_each_instance_has_a_stream_and_its_share_of_the_cpus() -> None:
    cpus, group = available_cpus(), "instance_group { kind: KIND_CPU count: %d }"
    assert properties(group % cpus) == {
        "INFERENCE_NUM_THREADS": cpus,
        "NUM_STREAMS": cpus,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    assert properties(group % 1000) == properties(group % cpus)
    alone = properties()
    assert (alone["INFERENCE_NUM_THREADS"], alone["NUM_STREAMS"]) == (cpus, 1)
    threads = properties(group % cpus, INFERENCE_NUM_THREADS="3")["INFERENCE_NUM_THREADS"]
    assert threads == 3 * cpus


def test_parameters_replace_defaults_in_any_case() -> None:
    found = properties(
        INFERENCE_NUM_THREADS="3",
        COMPILATION_NUM_THREADS="2",
        NUM_STREAMS="Auto",
        HINT_BF16="Yes",
        PERFORMANCE_HINT="cumulative_Throughput",
    )
    assert found == {
        "INFERENCE_NUM_THREADS": 3,
        "COMPILATION_NUM_THREADS": 2,
        "NUM_STREAMS": "AUTO",
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "bf16",
        "PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT",
    }


def test_streams_or_a_hint_divide_all_cpus() -> None:
    group = "instance_group { kind: KIND_CPU count: 1000 }"
    assert properties(group, NUM_STREAMS="2")["INFERENCE_NUM_THREADS"] == available_cpus()
    assert "NUM_STREAMS" not in properties(PERFORMANCE_HINT="LATENCY")


def test_other_devices_get_no_properties_of_a_cpu() -> None:
    assert properties(TARGET_DEVICE="gpu", PERFORMANCE_HINT="latency") == {"PERFORMANCE_HINT": "LATENCY"}
    assert target_device(model(Path("nowhere"), parameters(TARGET_DEVICE="gpu"))) == "GPU"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("INFERENCE_NUM_THREADS", "Two", "to be a non-negative number, got two"),
        ("COMPILATION_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("NUM_STREAMS", "Many", "to be either AUTO/NUMA/<int_value>, got many"),
        ("HINT_BF16", "NO", "to be YES, got no"),
        ("PERFORMANCE_HINT", "Fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
    ],
)
def test_bad_values_are_named_in_lower_case(key: str, value: str, text: str) -> None:
    with pytest.raises(InferError) as caught:
        properties(**{key: value})
    assert caught.value.message == f"expected the parameter '{key}' {text}"


@pytest.mark.parametrize(("value", "expected"), [("YES", True), ("yes", True), ("true", False), ("", False)])
def test_flags_are_yes(value: str, expected: bool) -> None:
    assert (
        flag(model(Path("nowhere"), parameters(SKIP_OV_DYNAMIC_BATCHSIZE=value)), "SKIP_OV_DYNAMIC_BATCHSIZE")
        is expected
    )
