"""The cheaper forms of a model: what each changes, what it needs, why it may be refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

VNNI: Final = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Flags of processors that add up products of 8 bits without an overflow; one of them is enough."""
BF16: Final = ("avx512_bf16", "amx_bf16")
KEPT: Final = (4, 12, 24)
"""Numbers of first convolutions that stay as they are, in candidates of their own."""
_EXTRAS: Final = {"nncf": "nncf", "tensorrt": "gpu", "torch": "pytorch"}
"""Of packages that the extra `optimise` does not have."""
_ONNX: Final = ("onnx", "onnxruntime")
_OPENVINO: Final = ("openvino",)


class Candidate(msgspec.Struct, frozen=True):
    """A form of a model.

    Attributes:
        name: in reports and on the command line.
        about: what it changes, in a phrase.
        build: the function that writes its file, `module:function`; "" for the file as it is.
        arguments: of that function.
        backend: that answers it.
        file: that is written; "" for the file as it is.
        parameters: of the configuration, beside those that it has.
        modules: that have to be installed here.
        cpu: flags of processors of which one has to be there; () for any processor.
        gpu: whether it needs a GPU of NVIDIA.
        risk: why it may be refused.
    """

    name: str
    about: str
    backend: str
    build: str = ""
    arguments: Mapping[str, int] = {}
    file: str = ""
    parameters: Mapping[str, str] = {}
    modules: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    gpu: bool = False
    risk: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What decides which candidates there are.

    Attributes:
        backend, file: of the present form, and the file's name.
        opset: of an ONNX model; 0 for others.
        convolutions: nodes of an ONNX model.
        conv_bytes, matmul_bytes: of the weights of convolutions, and of MatMul and Gemm.
    """

    backend: str
    file: str
    opset: int = 0
    convolutions: int = 0
    conv_bytes: int = 0
    matmul_bytes: int = 0

    @property
    def is_onnx(self) -> bool:
        """Whether the model's file is an ONNX model."""
        return self.file.endswith(".onnx")


class Machine(msgspec.Struct, frozen=True):
    """What there is here: flags of the processors, modules that can be imported, whether a GPU."""

    cpu: frozenset[str]
    modules: frozenset[str]
    gpu: bool

    def lacks(self, candidate: Candidate) -> str:
        """Return why a candidate cannot be tried here; "" if it can."""
        if candidate.gpu and not self.gpu:
            return "needs a GPU of NVIDIA, and there is none (never run)"
        if candidate.cpu and not self.cpu.intersection(candidate.cpu):
            return f"needs a processor with {' or '.join(candidate.cpu)}"
        missing = [each for each in candidate.modules if each not in self.modules]
        if not missing:
            return ""
        extra = next((_EXTRAS[each] for each in missing if each in _EXTRAS), "optimise")
        return f"needs the package {', '.join(missing)} (the extra {extra})"

    def needed(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the flags that a processor has to have where the candidate is to answer as it does here."""
        return tuple([flag for flag in candidate.cpu if flag in self.cpu][:1])


def candidates(facts: Facts, machine: Machine) -> list[Candidate]:
    """Return the candidates for a model, the cheapest to try first."""
    found = _of_openvino(facts) if facts.backend in ("onnxruntime", "openvino") else []
    if facts.is_onnx:
        found += [*_of_onnx(facts, machine), *_of_tensorrt(facts)]
    if facts.file.endswith(".pt2"):
        found.append(_AOTI)
    return found


def _of_openvino(facts: Facts) -> list[Candidate]:
    bf16 = Candidate(
        "openvino-bf16",
        "OpenVINO, computing in bfloat16",
        "openvino",
        parameters={"HINT_BF16": "YES"},
        modules=_OPENVINO,
        cpu=BF16,
        risk="8 bits of mantissa: classes that are close change places",
    )
    other = Candidate("openvino-f32", "OpenVINO instead of ONNX Runtime", "openvino", modules=_OPENVINO)
    # An output that ONNX Runtime calls by another name, or an operator that is missing, shows at its load.
    return [*([other] if facts.backend != "openvino" else []), bf16]


def _of_onnx(facts: Facts, machine: Machine) -> list[Candidate]:
    saturates = not machine.cpu.intersection(VNNI)
    static = [_int8(0, saturates)] + [_int8(kept, saturates) for kept in KEPT if kept < facts.convolutions]
    dynamic = Candidate(
        "int8-dynamic",
        "weights of matrices in 8 bits, activations as they come",
        "onnxruntime",
        "nereid.optimise.trials.build:dynamic",
        file="model.onnx",
        modules=_ONNX,
        risk="convolutions stay as they are",
    )
    # Where convolutions dominate it was 2.4 times slower than the model as it is.
    pays = facts.matmul_bytes > facts.conv_bytes
    nncf = Candidate(
        "nncf-int8",
        "8 bits by NNCF, answered by OpenVINO",
        "openvino",
        "nereid.optimise.trials.build:nncf_int8",
        file="model.xml",
        modules=("nncf", "openvino"),
        cpu=VNNI,
        risk="calibrated on few rows",
    )
    return [*static, *([dynamic] if pays else []), nncf]


def _int8(kept: int, saturates: bool) -> Candidate:
    first = f", the first {kept} convolutions and the last matrix as they are" if kept else ""
    return Candidate(
        f"int8-keep{kept}" if kept else "int8",
        f"8 bits for each channel{', of them 7 used' if saturates else ''}{first}",
        "onnxruntime",
        "nereid.optimise.trials.build:int8",
        {"kept": kept, "reduce_range": int(saturates)},
        "model.onnx",
        modules=_ONNX,
        cpu=() if saturates else VNNI,
        risk="calibrated on few rows; layers with outliers lose most",
    )


def _of_tensorrt(facts: Facts) -> list[Candidate]:
    fp16 = Candidate(
        "tensorrt-fp16",
        "TensorRT, computing in FP16",
        "tensorrt",
        parameters={"precision_mode": "FP16"},
        modules=("tensorrt", "torch"),
        gpu=True,
        risk="overflows above 65,504",
    )
    int8 = Candidate(
        "tensorrt-int8",
        "8 bits for each channel, by TensorRT",
        "tensorrt",
        "nereid.optimise.trials.build:int8",
        {"kept": 0, "reduce_range": 0, "symmetric": 1},
        "model.onnx",
        {"precision_mode": "INT8"},
        ("onnx", "onnxruntime", "tensorrt", "torch"),
        gpu=True,
        risk="calibrated on few rows",
    )
    return [fp16, int8]


_AOTI: Final = Candidate(
    "aoti",
    "compiled ahead of time by PyTorch",
    "pytorch",
    "nereid.optimise.trials.build:aoti",
    file="model.pt2",
    modules=("torch",),
    gpu=True,
    risk="made for one kind of GPU",
)
