"""The values that requests carry: drawn, read from files in perf_analyzer's format, or recorded ones."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from nereid_client import Signature, TensorSpec
from nereid_client.datatypes import NUMPY, Array, decode, to_array
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.recorded import is_tape, recorded_inputs

Step = Mapping[str, Array]
"""The inputs of one request, with the batch dimension where the model has one."""

_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ", np.uint8)


def read_inputs(options: Options, signature: Signature) -> list[list[Step]]:
    """Return sequences of steps; values that are no sequences are sequences of one step.

    Raises:
        PerfError: a shape or value is missing, or does not fit the model.
    """
    required = {name: spec for name, spec in signature.inputs.items() if not spec.optional}
    for name in options.shapes:
        if name not in signature.inputs:
            raise PerfError(f"--shape: the model has no input '{name}'")
    shapes = {name: _shape(spec, signature, options) for name, spec in signature.inputs.items()}
    if options.data in ("random", "zero"):
        made = {name: _made(spec, shapes[name], options) for name, spec in required.items()}
        return [[_batched(made, signature, options.batch)]]
    path = Path(options.data)
    if is_tape(path):
        return recorded_inputs(path, options, signature)
    try:
        steps = _from_directory(path, required, shapes) if path.is_dir() else _from_json(path, "data")
        known = {name: (spec, shapes[name]) for name, spec in signature.inputs.items()}
        return [
            [_batched(_read_step(step, known), signature, options.batch) for step in each] for each in steps
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from None


def read_expected(path: Path, signature: Signature, batch: int) -> list[list[Step]]:
    """Return the outputs of each step, from "validation_data", or "data" of a file of outputs alone.

    A list in it is the responses of a stream.

    Raises:
        PerfError: the file has none, or they do not fit the model.
    """
    try:
        text = json.loads(path.read_text())
        key = "validation_data" if "validation_data" in text else "data"
        known = {
            name: (spec, spec.shape[1:] if signature.batched else spec.shape)
            for name, spec in signature.outputs.items()
        }
        return [
            [_batched(_read_step(step, known), signature, batch) for step in each]
            for each in _from_json(path, key)
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> PerfError:
    if isinstance(error, OSError):
        return PerfError(f"{error.filename or path}: {error.strerror}")
    return PerfError(f"{path}: no {error}" if isinstance(error, KeyError) else f"{path}: {error}")


def _shape(spec: TensorSpec, signature: Signature, options: Options) -> tuple[int, ...]:
    """Return the shape of an input without the batch dimension; -1 where nobody has told it."""
    own = spec.shape[1:] if signature.batched else spec.shape
    given = options.shapes.get(spec.name, own)
    fits = len(given) == len(own) and all(w in (-1, g) for w, g in zip(own, given, strict=True))
    if not fits:
        raise PerfError(f"--shape: input '{spec.name}' has the shape {list(own)}, not {list(given)}")
    return given


def _made(spec: TensorSpec, shape: tuple[int, ...], options: Options) -> Array:
    if -1 in shape:
        raise PerfError(
            f"input '{spec.name}' has the shape {list(shape)}: give its size, e.g. "
            f"--shape={spec.name}:{','.join('8' if dim < 0 else str(dim) for dim in shape)}"
        )
    random = np.random.default_rng(options.seed)
    if spec.datatype == "BYTES":
        return _strings(shape, options, random)
    dtype = NUMPY.get(spec.datatype)
    if dtype is None:
        raise PerfError(f"input '{spec.name}' has the datatype {spec.datatype}, which is not known")
    if options.data == "zero":
        return np.zeros(shape, dtype)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    return random.integers(0, np.iinfo(dtype).max, shape, dtype)


def _strings(shape: tuple[int, ...], options: Options, random: np.random.Generator) -> Array:
    array = np.empty(int(np.prod(shape)), object)
    for i in range(array.size):
        drawn = _LETTERS[random.integers(0, len(_LETTERS), options.string_length)].tobytes()
        array[i] = b"" if options.data == "zero" else options.string_data.encode() or drawn
    return array.reshape(shape)


def _from_json(path: Path, key: str) -> list[list[Any]]:
    entries = json.loads(path.read_text())[key] if path.suffix != ".jsonl" else _lines(path)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"'{key}' is to be a list of steps, or of lists of them")
    return [each if isinstance(each, list) else [each] for each in entries]


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _from_directory(
    path: Path, specs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> list[list[Any]]:
    """Read a file of each input: bytes of the tensor; for BYTES one file is one element."""
    step: dict[str, Any] = {}
    for name, spec in specs.items():
        data = (path / name).read_bytes()
        if spec.datatype == "BYTES":
            step[name] = np.array([data], object)
        else:
            step[name] = decode(data, spec.datatype, shapes[name] if -1 not in shapes[name] else (-1,))
    return [[step]]


def _read_step(step: Any, known: Mapping[str, tuple[TensorSpec, tuple[int, ...]]]) -> dict[str, Array]:
    if not isinstance(step, Mapping):
        raise ValueError("a step is an object with a value for each name")
    values = {}
    for name, value in step.items():
        if name not in known:
            raise ValueError(f"the model has no tensor '{name}'; it has {', '.join(known)}")
        values[name] = _read_value(name, value, *known[name])
    return values


def _read_value(name: str, value: Any, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    if isinstance(value, Mapping):
        shape = tuple(value.get("shape", shape))
        if "b64" in value:
            data = b64decode(value["b64"])
            if spec.datatype == "BYTES":
                return _reshaped(name, to_array(name, [data], "BYTES"), shape)
            return _reshaped(name, decode(data, spec.datatype, (-1,)), shape)
        value = value["content"]
    array = to_array(name, value, spec.datatype)
    if array.ndim == len(shape) and all(w in (-1, g) for w, g in zip(shape, array.shape, strict=True)):
        return array
    return _reshaped(name, array, shape)


def _reshaped(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    try:
        if shape.count(-1) > 1 and array.size == 1:
            return array.reshape([1] * len(shape))
        return array.reshape(shape)
    except ValueError:
        raise ValueError(f"'{name}' has {array.size} elements, its shape is {list(shape)}") from None


def _batched(step: Mapping[str, Array], signature: Signature, batch: int) -> Step:
    if not signature.batched:
        if batch > 1:
            raise PerfError("the model takes no batches: leave -b away")
        return step
    return {name: np.ascontiguousarray(np.stack([array] * batch)) for name, array in step.items()}
