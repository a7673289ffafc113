"""Writes the files of candidates. Each function is called in a process of its own, with limits.

They take the model's present file, the file to write, the inputs of rows to calibrate with, and arguments of
the candidate; what they raise refuses the candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = Sequence[Mapping[str, Array]]
_PER_CHANNEL: Final = 13
"""The opset from which a graph may have a scale for each channel."""


class Refused(Exception):
    """A candidate cannot be built, with the reason in a phrase."""


def int8(source: Path, target: Path, rows: Rows, arguments: Mapping[str, int]) -> None:
    """Write an ONNX model that computes in 8 bits, with a scale for each channel of the weights.

    Args:
        source: an ONNX model.
        target: the file to write.
        rows: to calibrate with.
        arguments: `kept`, the number of first convolutions that stay as they are, with the last matrix, if it
            is not 0; `reduce_range` for 7 bits, where 8 overflow; `symmetric` for activations about 0.

    Raises:
        Refused: the graph would be invalid, with what is wrong.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    before = target.with_suffix(".before.onnx")
    # As a file: of a model in memory the tool looks for weights beside a file that it has not written.
    onnx.save(at_least(onnx.load(source), _PER_CHANNEL), before)
    quant_pre_process(str(before), str(before), skip_symbolic_shape=True)
    model = named(onnx.load(before))
    onnx.save(model, before)
    kind = QuantType.QInt8 if arguments.get("symmetric") else QuantType.QUInt8
    quantize_static(
        str(before),
        str(target),
        _reader(rows),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=bool(arguments.get("reduce_range")),
        activation_type=kind,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=left_alone(model, arguments.get("kept", 0)),
        extra_options={"ActivationSymmetric": True} if arguments.get("symmetric") else {},
    )
    before.unlink()
    check(target)


def _reader(rows: Rows) -> Any:
    """Return rows as ONNX Runtime's tool reads them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        left = iter(rows)

        def get_next(self) -> Any:
            return next(self.left, None)

    return Reader()


def dynamic(source: Path, target: Path, rows: Rows, arguments: Mapping[str, int]) -> None:
    """Write an ONNX model whose matrices are in 8 bits, and activations as they come. As `int8`."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = named(at_least(onnx.load(source), _PER_CHANNEL))
    quantize_dynamic(model, str(target), ["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
    check(target)


def nncf_int8(source: Path, target: Path, rows: Rows, arguments: Mapping[str, int]) -> None:
    """Write a model of OpenVINO that computes in 8 bits, by NNCF. As `int8`."""
    import nncf
    import openvino as ov

    made = nncf.quantize(ov.Core().read_model(source), nncf.Dataset(list(rows)), subset_size=len(rows))
    ov.save_model(made, target, compress_to_fp16=False)


def aoti(source: Path, target: Path, rows: Rows, arguments: Mapping[str, int]) -> None:
    """Compile an exported program of PyTorch for the GPU that is here. NEVER RUN."""
    import torch

    program = torch.export.load(source)
    torch._inductor.aoti_compile_and_package(program, package_path=str(target))


def at_least(model: Any, opset: int) -> Any:
    """Return an ONNX model of this opset or a later one.

    Below it, ONNX Runtime's tool writes scales for each channel all the same, in a graph that is invalid.

    Raises:
        Refused: it cannot be converted.
    """
    import onnx
    from onnx import version_converter

    now = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    if now >= opset:
        return model
    try:
        return version_converter.convert_version(model, opset)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        why = str(error).strip().splitlines()[0]
        raise Refused(f"opset {now} cannot be converted to {opset}, which it needs: {why}") from None


def named(model: Any) -> Any:
    """Return an ONNX model all nodes of which have names, by which they can be left as they are."""
    known = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            name = f"{node.op_type}_{number}"
            while name in known:
                name += "_"
            known.add(name)
            node.name = name
    return model


def left_alone(model: Any, kept: int) -> list[str]:
    """Return the names of the first convolutions, so many, and of the last matrix; of none for 0."""
    if not kept:
        return []
    nodes = model.graph.node
    first = [node.name for node in nodes if node.op_type == "Conv"][:kept]
    matrices = [node.name for node in nodes if node.op_type in ("MatMul", "Gemm")]
    return [*first, *matrices[-1:]]


def check(file: Path) -> None:
    """Check an ONNX model that a tool has written.

    Raises:
        Refused: it is invalid, with what is wrong.
    """
    import onnx

    try:
        onnx.checker.check_model(str(file))
    except onnx.checker.ValidationError as error:
        raise Refused(f"the tool has written an invalid graph: {_first(str(error).splitlines())}") from None


def _first(lines: Sequence[str]) -> str:
    return next((line.strip() for line in lines if line.strip()), "no reason given")


def calibration(rows: Iterator[tuple[str, dict[str, Array]]], most_bytes: int) -> Rows:
    """Return the inputs of rows, as many as there is room for."""
    found: list[Mapping[str, Array]] = []
    for _, inputs in rows:
        most_bytes -= sum(np.asarray(array).nbytes for array in inputs.values())
        if most_bytes < 0 and found:
            break
        found.append(inputs)
    return found
