"""Which candidates a model has, and what this machine lacks for them."""

import pytest

from nereid.optimise.trials.candidates import BF16, VNNI, Candidate, Facts, Machine, candidates

ALL = frozenset({"onnx", "onnxruntime", "openvino", "nncf"})
MACHINE = Machine(frozenset({"avx2", "avx512_vnni", "avx512_bf16"}), ALL, gpu=False)
CONVOLUTIONS = Facts("onnxruntime", "model.onnx", 17, convolutions=49, conv_bytes=13, matmul_bytes=5)


def names(facts: Facts, machine: Machine = MACHINE) -> list[str]:
    return [each.name for each in candidates(facts, machine)]


def named(name: str, machine: Machine = MACHINE) -> Candidate:
    return next(each for each in candidates(CONVOLUTIONS, machine) if each.name == name)


def test_a_model_of_convolutions_has_no_dynamic_candidate() -> None:
    found = names(CONVOLUTIONS)
    assert found[:2] == ["openvino-f32", "openvino-bf16"]
    assert [name for name in found if name.startswith("int8")] == [
        "int8",
        "int8-keep4",
        "int8-keep12",
        "int8-keep24",
    ]
    assert "int8-dynamic" in names(Facts("onnxruntime", "model.onnx", 17, 2, conv_bytes=1, matmul_bytes=5))


def test_no_more_convolutions_are_kept_than_there_are() -> None:
    found = names(Facts("onnxruntime", "model.onnx", 17, convolutions=6))
    assert [name for name in found if name.startswith("int8")] == ["int8", "int8-keep4"]


def test_a_model_of_openvino_is_tried_in_bfloat16_alone() -> None:
    assert names(Facts("openvino", "model.xml")) == ["openvino-bf16"]
    assert names(Facts("fil", "model.json")) == []


def test_without_instructions_that_do_not_overflow_seven_bits_are_used() -> None:
    old = Machine(frozenset({"avx2"}), ALL, gpu=False)
    assert named("int8", old).arguments["reduce_range"] == 1
    assert not old.lacks(named("int8", old)) and old.needed(named("int8", old)) == ()
    assert named("int8").arguments["reduce_range"] == 0
    assert MACHINE.needed(named("int8")) == ("avx512_vnni",)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openvino-bf16", f"needs a processor with {' or '.join(BF16)}"),
        ("nncf-int8", f"needs a processor with {' or '.join(VNNI)}"),
        ("tensorrt-fp16", "needs a GPU of NVIDIA, and there is none (never run)"),
    ],
)
def test_what_is_missing_is_named(name: str, why: str) -> None:
    assert Machine(frozenset(), ALL, gpu=False).lacks(named(name)) == why


def test_a_package_that_is_missing_is_named() -> None:
    machine = Machine(MACHINE.cpu, frozenset({"onnx"}), gpu=False)
    assert machine.lacks(named("int8")) == "needs the package onnxruntime (the extra optimise)"
    machine = Machine(MACHINE.cpu, frozenset({"openvino"}), gpu=False)
    assert machine.lacks(named("nncf-int8")) == "needs the package nncf (the extra nncf)"
