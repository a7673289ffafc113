"""Parts of a form (`multipart/form-data`, RFC 7578), read in time and memory linear in its bytes.

A part is bytes: what it contains is not read, so that nothing nests.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.core.errors import InferError, invalid_arg
from app.core.tensors import Buffer

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MEDIA_TYPE: Final = "multipart/form-data"
MAX_PARTS: Final = 1024
_MAX_CONTENT_TYPE: Final = 1024
"""Characters of the header that has the boundary, which is 256 bytes at most."""
_MAX_HEADERS: Final = 8
"""Of a part; what browsers and clients send has three at most."""
_MAX_HEADER: Final = 4096
_MAX_OPTIONS: Final = 32
_PLAIN: Final = (b"", b"7bit", b"8bit", b"binary")
_CHUNK: Final = 256 << 10

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # what is wrong is for the client to know


class Part(NamedTuple):
    """A part; `file_name` is "" for one that is no file, `media_type` where it has none."""

    name: str
    file_name: str
    media_type: str
    data: bytes


def read_form(body: Buffer, content_type: str) -> list[Part]:
    """Return the parts of a form of at most `MAX_PARTS`.

    Args:
        body: all of it.
        content_type: the header, with the boundary.

    Raises:
        InferError: INVALID_ARG for a body that is no such form.
    """
    reader, view = _Reader(), memoryview(body)
    try:
        parser = MultipartParser(
            _boundary(content_type),
            reader.callbacks(),
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER,
        )
        for start in range(0, len(view), _CHUNK):
            parser.write(bytes(view[start : start + _CHUNK]))
    except FormParserError as error:
        raise invalid_arg(f"the form cannot be read: {error}") from None
    if not reader.ended:
        raise invalid_arg("the form cannot be read: it ends before its last boundary")
    if not reader.parts:
        raise _wrong_number()
    return reader.parts


def _boundary(content_type: str) -> bytes:
    if len(content_type) > _MAX_CONTENT_TYPE:
        raise invalid_arg(f"the content type of a form has more than {_MAX_CONTENT_TYPE} characters")
    _, options = parse_options_header(content_type)
    if not options.get(b"boundary"):
        raise invalid_arg("the content type of the form has no boundary")
    return options[b"boundary"]


def _wrong_number() -> InferError:
    return invalid_arg(f"expected a form of 1 to {MAX_PARTS} parts")


class _Reader:
    """Receives what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value, self._data = bytearray(), bytearray(), bytearray()

    def callbacks(self) -> "MultipartCallbacks":
        """Return what the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": partial(_add, self._field),
            "on_header_value": partial(_add, self._value),
            "on_header_end": self._end_header,
            "on_part_data": partial(_add, self._data),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise _wrong_number()
        self._headers = {}

    def _end_header(self) -> None:
        self._headers.setdefault(bytes(self._field).lower(), bytes(self._value).strip())
        self._field.clear()
        self._value.clear()

    def _end_part(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"")
        if disposition.count(b";") > _MAX_OPTIONS:  # each takes a microsecond
            raise invalid_arg(f"a part of the form has more than {_MAX_OPTIONS} parameters")
        _, options = parse_options_header(disposition)
        if b"name" not in options:
            raise invalid_arg("a part of the form has no name")
        if (encoding := self._headers.get(b"content-transfer-encoding", b"")).lower() not in _PLAIN:
            raise invalid_arg(f"a part of the form has an unknown transfer encoding: {_text(encoding)}")
        file_name, media_type = options.get(b"filename", b""), self._headers.get(b"content-type", b"")
        part = Part(_text(options[b"name"]), _text(file_name), _text(media_type), bytes(self._data))
        self.parts.append(part)
        self._data.clear()

    def _end(self) -> None:
        self.ended = True


def _add(to: bytearray, data: bytes, start: int, end: int) -> None:
    to += memoryview(data)[start:end]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
