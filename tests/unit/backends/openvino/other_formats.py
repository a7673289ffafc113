"""Y = max(X, 0), FP32 [n, 4], in files of other frameworks, written without them.

Numbers of fields are those of the formats' definitions: graph.proto, saved_model.proto and meta_graph.proto
of TensorFlow, framework.proto of Paddle, schema.fbs of TensorFlow Lite.
"""

from collections.abc import Sequence
from pathlib import Path

import flatbuffers

FLOAT_OF_TENSORFLOW = 1
FLOAT_OF_PADDLE = 5
RELU_OF_TFLITE = 19


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def entry(number: int, key: str, value: bytes) -> bytes:
    """One entry of a protobuf map."""
    return field(number, field(1, key) + field(2, value))


_SHAPE = field(2, field(1, -1)) + field(2, field(1, 4))


def _graph() -> bytes:
    kind = field(6, FLOAT_OF_TENSORFLOW)
    x = (
        field(1, "x")
        + field(2, "Placeholder")
        + entry(5, "dtype", kind)
        + entry(5, "shape", field(7, _SHAPE))
    )
    y = field(1, "y") + field(2, "Relu") + field(3, "x") + entry(5, "T", kind)
    return field(1, x) + field(1, y) + field(4, field(1, 1087))


def graphdef(path: Path) -> None:
    """A frozen graph of TensorFlow; its tensors are x:0 and y:0."""
    path.write_bytes(_graph())


def savedmodel(path: Path) -> None:
    """A SavedModel with the usual signature."""
    tensors = [field(1, f"{name}:0") + field(2, FLOAT_OF_TENSORFLOW) + field(3, _SHAPE) for name in "xy"]
    signature = entry(1, "x", tensors[0]) + entry(2, "y", tensors[1]) + field(3, "tensorflow/serving/predict")
    graph = field(1, field(4, "serve")) + field(2, _graph()) + entry(5, "serving_default", signature)
    path.mkdir()
    (path / "saved_model.pb").write_bytes(field(1, 1) + field(2, graph))


def paddle(path: Path) -> None:
    """A program of Paddle without weights."""
    feed, fetch, tensor = 9, 10, 7
    variables = [
        _variable("feed", feed),
        _variable("fetch", fetch),
        _variable("x", tensor),
        _variable("y", tensor),
    ]
    operators = [_operator("feed", "X", "feed", "x"), _operator("relu", "X", "x", "y")]
    operators.append(_operator("fetch", "X", "y", "fetch"))
    block = field(1, 0) + field(2, -1)
    block += b"".join(field(3, variable) for variable in variables)
    block += b"".join(field(4, operator) for operator in operators)
    path.write_bytes(field(1, block) + field(4, field(1, 0)))


def _variable(name: str, kind: int) -> bytes:
    dims = field(1, FLOAT_OF_PADDLE) + field(2, -1) + field(2, 4)
    return field(1, name) + field(2, field(1, kind) + field(3, field(1, dims)))


def _operator(kind: str, parameter: str, source: str, target: str) -> bytes:
    column = field(4, field(1, "col") + field(2, 0) + field(3, 0))
    arguments = field(1, field(1, parameter) + field(2, source)) + field(
        2, field(1, "Out") + field(2, target)
    )
    return arguments + field(3, kind) + column


def tflite(path: Path) -> None:
    """A model of TensorFlow Lite; -1 is in the signature of its shape only."""
    builder = flatbuffers.Builder(512)
    tensors = _offsets(builder, [_tensor(builder, name) for name in "xy"])
    inputs, outputs = _numbers(builder, [0]), _numbers(builder, [1])
    operators = _offsets(builder, [_table(builder, 5, {1: inputs, 2: outputs})])
    subgraphs = _offsets(builder, [_table(builder, 5, {0: tensors, 1: inputs, 2: outputs, 3: operators})])
    builder.StartObject(4)
    builder.PrependInt8Slot(0, RELU_OF_TFLITE, 0)
    builder.PrependInt32Slot(2, 1, 0)
    builder.PrependInt32Slot(3, RELU_OF_TFLITE, 0)
    codes = _offsets(builder, [builder.EndObject()])
    buffers = _offsets(builder, [_table(builder, 1, {})])
    builder.StartObject(8)
    builder.PrependUint32Slot(0, 3, 0)
    for slot, offset in ((1, codes), (2, subgraphs), (4, buffers)):
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    builder.Finish(builder.EndObject(), b"TFL3")
    path.write_bytes(bytes(builder.Output()))


def _tensor(builder: flatbuffers.Builder, name: str) -> int:
    text, shape, signature = builder.CreateString(name), _numbers(builder, [1, 4]), _numbers(builder, [-1, 4])
    return _table(builder, 8, {0: shape, 3: text, 7: signature})


def _table(builder: flatbuffers.Builder, slots: int, offsets: dict[int, int]) -> int:
    builder.StartObject(slots)
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _numbers(builder: flatbuffers.Builder, values: Sequence[int]) -> int:
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependInt32(value)
    return int(builder.EndVector())


def _offsets(builder: flatbuffers.Builder, values: Sequence[int]) -> int:
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependUOffsetTRelative(value)
    return int(builder.EndVector())
