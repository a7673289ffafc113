"""JSON parser that accepts the documents Triton accepts, and refuses others with Triton's error texts.

Triton parses with rapidjson (NaN and Infinity allowed, strings not checked for UTF-8) and reads values
through typed accessors, whose failures are INTERNAL errors. msgspec handles the common case; the standard
library parses what msgspec refuses and rapidjson would not.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from app.core.errors import InferError, internal, invalid_arg
from app.core.tensors import Buffer

MAX_DEPTH: Final = 100
MAX_UINT64: Final = (1 << 64) - 1
_SEARCHED_BYTES: Final = 1 << 20  # of a refused document, searched for the innermost open bracket
_BOM: Final = b"\xef\xbb\xbf"
_PIECE: Final = 64 << 10  # of a document that is counted: NumPy's next to no memory, and short
_QUOTE: Final = ord('"')

# Standard library message (its beginning) -> rapidjson's.
_SYNTAX: Final = (
    ("Expecting value", "Invalid value."),
    ("Expecting property name", "Missing a name for object member."),
    ("Illegal trailing comma", "Missing a name for object member."),
    ("Expecting ':'", "Missing a colon after a name of object member."),
    ("Unterminated string", "Missing a closing quotation mark in string."),
    ("Invalid \\uXXXX", "Incorrect hex digit after \\u escape in string."),
    ("Invalid \\", "Invalid escape character in string."),
    ("Invalid control", "Invalid escape character in string."),
    ("Extra data", "The document root must not be followed by other values."),
)


def parse(data: bytes | bytearray | memoryview) -> Any:
    """Decode a JSON document; bytes that are not UTF-8 become surrogate escapes in its strings.

    Raises:
        InferError: INTERNAL for a syntax error, INVALID_ARG when nested too deeply for the parsers, which is
            about 1000 levels: see `check_depth`.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_leniently(bytes(data))


def parse_first(data: bytes | bytearray | memoryview) -> Any:
    """Decode a JSON document of which the first of several equal keys counts, as in rapidjson.

    `parse`, of which the last counts, is ten times as fast.

    Raises:
        InferError: as `parse`.
    """
    return _parse_leniently(bytes(data), object_pairs_hook=_first_of_equals)


def has_equal_keys(data: bytes) -> bool:
    """Return whether any object of a valid JSON document has two members of one name.

    Raises:
        InferError: INVALID_ARG when nested too deeply for the parser.
    """
    try:
        _DISTINCT.decode(data.decode("utf-8", "surrogateescape"))
    except _EqualKeys:
        return True
    except RecursionError:
        raise too_deep() from None
    return False


class _EqualKeys(Exception):
    """Raised for an object with two members of one name."""


def _require_distinct(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise _EqualKeys


def _first_of_equals(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        members.update(reversed(pairs))
    return members


_DISTINCT: Final = json.JSONDecoder(object_pairs_hook=_require_distinct, parse_int=float)


class Members(tuple[tuple[str, Any], ...]):
    """Members of a JSON object, in order, duplicate keys included."""

    __slots__ = ()


def parse_members(data: bytes | bytearray | memoryview) -> Members:
    """Decode a JSON object, with every object in it as `Members`.

    Raises:
        InferError: as `parse`; INTERNAL when the document is not an object.
    """
    document = _parse_leniently(bytes(data), object_pairs_hook=Members)
    if not isinstance(document, Members):
        raise internal("attempt to get members for non-object")
    return document


def check_depth(value: Any) -> None:
    """Refuse arrays and objects nested more than 100 deep.

    Raises:
        InferError: INVALID_ARG.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    if any(isinstance(node, dict | list | Members) for node in level):
        raise too_deep()


def check_count(data: Buffer, marks: bytes, limit: int) -> None:
    """Refuse a document with more than `limit` of these characters, also within strings.

    Python allocates an object for each array, which the garbage collector then visits: a few bytes can cost
    a microsecond, in which the whole process waits. Counting is left to NumPy, by which others go on.

    Raises:
        InferError: INVALID_ARG.
    """
    if len(data) > limit and sum(_counted(data, mark) for mark in marks) > limit:
        raise too_many(limit)


def check_values(data: Buffer, marks: bytes, limit: int) -> None:
    """Refuse a document with more than `limit` of these characters outside its strings.

    Raises:
        InferError: INVALID_ARG.
    """
    if len(data) <= limit or sum(_counted(data, mark) for mark in marks) <= limit:
        return
    if sum(int((piece == mark).sum()) for piece in _outside_strings(data) for mark in marks) > limit:
        raise too_many(limit)


def too_many(limit: int) -> InferError:
    return invalid_arg(f"request JSON has more than {limit} values")


def _counted(data: Buffer, mark: int) -> int:
    numbers = np.frombuffer(data, np.uint8)
    return sum(
        int(np.count_nonzero(numbers[start : start + _PIECE] == mark))
        for start in range(0, len(numbers), _PIECE)
    )


def _outside_strings(data: Buffer) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield what of a valid document is no part of a string, piece by piece."""
    inside = escaped = False
    for start in range(0, len(data), _PIECE):
        text = bytes(data[start : start + _PIECE])
        if escaped:
            text = b"_" + text[1:]
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        escaped = text.endswith(b"\\")
        numbers = np.frombuffer(text, np.uint8)
        within = np.logical_xor.accumulate(numbers == _QUOTE) ^ inside
        inside = bool(within[-1])
        yield numbers[~within]


def _children(node: Any) -> Any:
    if isinstance(node, dict):
        return node.values()
    if isinstance(node, Members):
        return [value for _, value in node]
    return node if isinstance(node, list) else ()


def too_deep() -> InferError:
    return invalid_arg(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def syntax_error(reason: str, offset: int) -> InferError:
    return internal(f"failed to parse the request JSON buffer: {reason} at {offset}")


def _parse_leniently(data: bytes, object_pairs_hook: Any = None) -> Any:
    # To rapidjson a NUL is the end of the text.
    data = data.partition(b"\0")[0].removeprefix(_BOM)
    if not data.strip(b" \t\r\n"):
        raise syntax_error("The document is empty.", len(data))
    try:
        document = json.loads(
            data.decode("utf-8", "surrogateescape"),
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=object_pairs_hook,
        )
    except RecursionError:
        raise too_deep() from None
    except _TooBig as big:
        offset = data.find(str(big).encode())
        raise syntax_error("Number too big to be stored in double.", offset) from None
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode("utf-8", "surrogateescape"))
        raise syntax_error(*_translate_error(data, error.msg, offset)) from None
    if b"\\u" in data and (lone := _LONE_SURROGATE.search(data)):
        raise syntax_error("The surrogate pair in string is invalid.", lone.start("escape"))
    return document


_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*+(?P<escape>\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_LITERAL: Final = re.compile(
    rb"n(?:u(?:ll?)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|Na?|I(?:nf?)?|-(?:Na?|I(?:nf?)?)?"
)
_FRACTION: Final = re.compile(rb"\.(?![0-9])")
_EXPONENT: Final = re.compile(rb"[eE][+-]?(?![0-9])")


def _translate_error(data: bytes, message: str, offset: int) -> tuple[str, int]:
    """Translate an error of the standard library at `offset` to rapidjson's text and offset."""
    if message.startswith("Expecting value"):
        literal = _LITERAL.match(data, offset)
        return "Invalid value.", literal.end() if literal else offset
    if message.startswith(("Expecting ','", "Extra data")) and data[offset - 1 : offset].isdigit():
        for pattern, reason in ((_FRACTION, "Miss fraction part"), (_EXPONENT, "Miss exponent")):
            if cut := pattern.match(data, offset):
                return f"{reason} in number.", cut.end()
    if message.startswith("Expecting ','"):
        if offset <= _SEARCHED_BYTES and _in_object(data[:offset]):
            return "Missing a comma or '}' after an object member.", offset
        return "Missing a comma or ']' after an array element.", offset
    if message.startswith("Unterminated string"):
        offset = len(data)
    elif message.startswith("Invalid \\uXXXX"):
        offset = data.rfind(b"\\", 0, offset + 1)
    return next((reason for start, reason in _SYNTAX if message.startswith(start)), "Invalid value."), offset


def _in_object(text: bytes) -> bool:
    """Return whether valid JSON, truncated outside a string, ends in an object rather than an array."""
    brackets = re.sub(rb'"(?:[^"\\]++|\\.)*+"|[^][{}"]++', b"", text)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return brackets.endswith(b"{")


class _TooBig(Exception):
    """Raised for a number beyond the range of a double; its text is the argument."""


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _TooBig(text)
    return value


def _int(text: str) -> int | float:
    # Beyond 64 bits a number is a double to rapidjson; int() of long digit strings would also be quadratic.
    return int(text) if len(text) <= 20 else _float(text)


def as_text(value: Any) -> str:
    """Return a string that is valid UTF-8, as names and identifiers must be."""
    if not isinstance(value, str):
        raise internal("attempt to access JSON non-string as string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise syntax_error("Invalid encoding in string.", 0) from None
    return value


def as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise internal("attempt to access JSON non-boolean as boolean")
    return value


def as_uint(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def member(document: Any, key: str) -> Any:
    """Return a required member."""
    if not isinstance(document, dict) or key not in document:
        raise internal(f"attempt to access non-existing object member '{key}'")
    return document[key]


def member_array(document: Any, key: str) -> list[Any]:
    """Return a required member that is an array."""
    value = member(document, key)
    if not isinstance(value, list):
        raise internal("attempt to access JSON non-array as array")
    return value


@contextmanager
def error_prefix(prefix: str) -> Iterator[None]:
    """Prefix the text of an `InferError` raised inside, as Triton does when it propagates errors."""
    try:
        yield
    except InferError as error:
        raise InferError(error.code, f"{prefix}: {error.message}", error.reason) from None
