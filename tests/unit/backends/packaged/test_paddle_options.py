"""What Triton's paddle_backend documents of accelerators, without Paddle."""

from typing import Any

import pytest

from backends.packaged.paddle.options import Cpu, TensorRt, check_instance, read_cpu, read_tensorrt
from backends.python.api.errors import TritonModelException


def accelerated(kind: str, *every: tuple[str, dict[str, str]]) -> dict[str, Any]:
    listed = [{"name": name, "parameters": parameters} for name, parameters in every]
    return {"optimization": {"execution_accelerators": {f"{kind}_execution_accelerator": listed}}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], Cpu()),
        ([("mkldnn", {})], Cpu(onednn=True, capacity=10)),
        ([("mkldnn", {"cpu_threads": "3", "capacity": "5"})], Cpu(onednn=True, threads=3, capacity=5)),
        ([("mkldnn", {"use_int8": "On"})], Cpu(onednn=True, int8=True)),
        ([("mkldnn", {"use_int8": "0"})], Cpu(onednn=True)),
        ([("ort", {"cpu_threads": "2"})], Cpu(ort=True, threads=2)),
        ([("ort", {}), ("mkldnn", {"capacity": "2"})], Cpu(ort=True, onednn=True, capacity=2)),
        ([("mkldnn", {"something": "else"})], Cpu(onednn=True)),
    ],
)
def test_accelerators_of_a_cpu(given: list[tuple[str, dict[str, str]]], expected: Cpu) -> None:
    assert read_cpu(accelerated("cpu", *given)) == expected


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        (
            "openvino",
            {},
            "unknown cpu_execution_accelerator name 'openvino' is provided. Available choices are"
            " [mkldnn, ort]",
        ),
        ("mkldnn", {"cpu_threads": "two"}, "failed to convert 'two' to integral number"),
        ("mkldnn", {"capacity": "1.5"}, "failed to convert '1.5' to integral number"),
        ("mkldnn", {"use_int8": "yes"}, "failed to convert 'yes' to boolean"),
    ],
)
def test_accelerators_of_a_cpu_are_refused(name: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        read_cpu(accelerated("cpu", (name, parameters)))
    assert str(caught.value) == message


def test_tensorrt() -> None:
    """The example of Triton's documentation, whose first section is called `config` there."""
    shapes = [("min_shape", {"a": "1", "b": "1 1 1"}), ("max_shape", {"a": "4096", "b": "1 128 1"})]
    parameters = {"precision": "TRT_FP16", "min_graph_size": "7", "workspace_size": "1000000"}
    parameters |= {"enable_tensorrt_oss": "1", "is_dynamic": "1", "max_batch_size": "4"}
    found = read_tensorrt(accelerated("gpu", *shapes, ("tensorrt", parameters)))
    ranges = {"min_shape": {"a": [1], "b": [1, 1, 1]}, "max_shape": {"a": [4096], "b": [1, 128, 1]}}
    assert found == TensorRt("trt_fp16", 7, 1000000, 4, True, True, shapes=ranges)
    assert read_tensorrt(accelerated("gpu", *shapes)) is None
    assert read_tensorrt({}) is None


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        (
            "config",
            {},
            "unknown name 'config' is provided for GPU execution accelerator Available choices are [config,"
            " min_shape, max_shape, opt_shape]",
        ),
        (
            "tensorrt",
            {"precision": "FP8"},
            "unknown precision type 'fp8' is provided. Available choices are [fluid, trt_fp32, trt_fp16,"
            " trt_int8]",
        ),
        (
            "tensorrt",
            {"shapes": "1"},
            "unknown parameter 'shapes' is provided for GPU execution accelerator config. Available"
            " choices are [precision, min_graph_size, workspace_size, max_batch_size, enable_tensorrt_oss,"
            " is_dynamic]",
        ),
        ("tensorrt", {"min_graph_size": "x"}, "failed to convert 'x' to integral number"),
        ("tensorrt", {"is_dynamic": "x"}, "failed to convert 'x' to boolean"),
    ],
)
def test_tensorrt_is_refused(name: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        read_tensorrt(accelerated("gpu", (name, parameters)))
    assert str(caught.value) == message


def test_data_types_and_kinds_that_paddle_has_not() -> None:
    config = {"name": "m", "input": [{"name": "a", "data_type": "TYPE_FP32"}], "output": []}
    check_instance(config, "m_0_0", "CPU")
    with pytest.raises(TritonModelException) as caught:
        check_instance(config, "m_0_0", "MODEL")
    assert str(caught.value) == "unexpected instance kind for m_0_0, paddle_backend only supports CPU/GPU."
    config["output"] = [{"name": "y", "data_type": "TYPE_STRING"}]
    with pytest.raises(TritonModelException) as caught:
        check_instance(config, "m_0_0", "CPU")
    assert str(caught.value) == "unsupported datatype 'TYPE_STRING' for tensor 'y' for model 'm'"
