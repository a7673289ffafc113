"""Patterns of requests that differ only in their id and tensors, for C to recognise them without parsing.

A request that has the same bytes as a known one, but for what is in the holes, is read the same way: a hole
is one string or one array of the JSON, whole, and two probes have shown that what is in it becomes the id, or
the data of that input, and changes nothing else.
"""

import re
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Final, NamedTuple

import msgspec

from app.core.datatypes import unpack_bytes
from app.core.errors import InferError
from app.core.tensors import Parameters, RegionSlice, RequestedOutput
from app.protocol.http.json_part import InputPart, JsonPart, check_header, read_data, read_plain
from app.protocol.http.json_tensors import tensor_bytes

ID: Final = -1
"""The `input` of the hole that has the request's id."""
_ID: Final = re.compile(rb'(?<!\\)"id"\s*:\s*"([ !#-\[\]-~]+)"')
_PROBES: Final = ((b"i", 0), (b"jj", 1))
"""Two ids, and what two tensors are filled with."""
_decode_list: Final = msgspec.json.Decoder(list).decode

Source = Callable[[bytes], bytes] | bytes | RegionSlice | None
"""What reads a tensor out of a hole, or its data that is always the same; None for one behind the JSON."""


class Hole(NamedTuple):
    """The bytes of the JSON that hold an input's data, or the id without its quotes (`ID`)."""

    start: int
    end: int
    input: int


class PatternInput(NamedTuple):
    """An input; `start` and `end` are bytes behind the JSON, for one that has its data there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    end: int
    source: Source


class RequestPattern(NamedTuple):
    """The JSON of a request, and how the others with its look are read; see `JsonPart`.

    `fields` are the request's outputs, id, parameters and `regions`.
    """

    holes: tuple[Hole, ...]
    inputs: tuple[PatternInput, ...]
    fields: tuple[tuple[RequestedOutput, ...], str, Parameters, bool]
    binary_default: bool
    binary_size: int
    needs_json_encoding: bool


def find_pattern(json: bytes, max_input_size: int) -> RequestPattern | None:
    """Return what requests with a JSON part like this one look like; None if that is not certain."""
    try:
        part = _read(json, max_input_size)
        if part is None or not _is_simple(part):
            return None
        _check_strings(part)
        holes = _find_holes(json, part)
        if not all(_probed(json, part, holes, max_input_size, *probe) for probe in _PROBES):
            return None
    except (InferError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    inputs = [_pattern_input(entry) for entry in part.inputs]
    for hole in holes:
        if hole.input != ID:
            entry = inputs[hole.input]
            read = partial(_read_tensor, entry.name, entry.datatype, entry.shape, max_input_size)
            inputs[hole.input] = entry._replace(source=read)
    return RequestPattern(
        holes,
        tuple(inputs),
        (part.outputs, part.id, part.parameters, "regions" in part.reserved),
        part.binary_default,
        part.binary_size,
        part.needs_json_encoding,
    )


def _pattern_input(entry: InputPart) -> PatternInput:
    return PatternInput(entry.name, entry.datatype, entry.shape, entry.start, entry.end, entry.data)


def _read(json: bytes, max_input_size: int) -> JsonPart | None:
    header = read_plain(json)
    return None if header is None else check_header(header, max_input_size)


def _is_simple(part: JsonPart) -> bool:
    """Return whether a request has no reserved parameters and classifications."""
    classifies = any(output.classification for output in part.outputs)
    return part.reserved.keys() <= {"regions"} and not classifies


def _check_strings(part: JsonPart) -> None:
    """Check that there are as many strings as a shape says, as is known of numbers: a probe makes as many.

    Raises:
        InferError: there are not.
    """
    for entry in part.inputs:
        if entry.datatype == "BYTES" and isinstance(entry.data, bytes):
            unpack_bytes(entry.data, prod(entry.shape) if entry.shape else 0)


def _find_holes(json: bytes, part: JsonPart) -> tuple[Hole, ...]:
    found = [match.span(1) for match in _ID.finditer(json)]
    own = len(found) == 1 and json[slice(*found[0])] == part.id.encode()
    holes = [Hole(*found[0], ID)] if own else []
    position = 0
    for number, raw in enumerate(read_data(json)):
        if not isinstance(part.inputs[number].data, bytes):
            continue
        match = re.compile(rb'(?<!\\)"data"\s*:\s*(' + re.escape(raw) + rb")").search(json, position)
        if match is not None:
            holes.append(Hole(*match.span(1), number))
            position = match.end()
    return tuple(sorted(holes))


def _probed(
    json: bytes,
    part: JsonPart,
    holes: tuple[Hole, ...],
    max_input_size: int,
    identifier: bytes,
    filling: int,
) -> bool:
    """Return whether the request with other things in its holes is the same request but for these."""
    inputs, probed, position, changed_id = list(part.inputs), b"", 0, part.id
    for hole in holes:
        if hole.input == ID:
            text, changed_id = identifier, identifier.decode()
        else:
            entry = inputs[hole.input]
            text = _filled(entry.datatype, prod(entry.shape), filling)
            data = _read_tensor(entry.name, entry.datatype, entry.shape, max_input_size, text)
            inputs[hole.input] = entry._replace(data=data)
        probed += json[position : hole.start] + text
        position = hole.end
    expected = part._replace(inputs=tuple(inputs), id=changed_id)
    found = _read(probed + json[position:], max_input_size)
    return found == expected


def _filled(datatype: str, count: int, filling: int) -> bytes:
    element = {"BYTES": str(filling), "BOOL": bool(filling)}.get(datatype, filling)
    return msgspec.json.encode([element] * count)


def _read_tensor(name: str, datatype: str, shape: tuple[int, ...], max_input_size: int, text: bytes) -> bytes:
    """Read the JSON array of an input; any error means that the whole request has to be read."""
    return tensor_bytes(name, datatype, prod(shape) if shape else 0, _decode_list(text), max_input_size)
