"""What the file of a library says, without loading it: loading executes its code.

Source of the format: the Tool Interface Standard's Executable and Linking Format, 1.2, for 64 bits.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from backends.cpp.build import NAME

_IDENT: Final = b"\x7fELF\x02\x01"
"""64 bits, little-endian: the machines that Nereid runs on."""
_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_ENTRY: Final = struct.Struct("<qQ")
_SHARED: Final = 3
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _TEXTS, _RPATH, _RUNPATH = 1, 5, 15, 29
ENTRY_POINT: Final = "TRITONBACKEND_ModelInstanceExecute"


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def library_fault(path: Path) -> str:
    """Return why a library of a C++ backend cannot be loaded; "" if its file says nothing of that."""
    content = path.read_bytes()
    try:
        return _fault(path, content)
    except (struct.error, ValueError, IndexError):
        return "it is damaged or truncated"


def _fault(path: Path, content: bytes) -> str:
    if not content.startswith(_IDENT):
        return "it is no library for 64-bit Linux (invalid ELF header)"
    kind, machine, _, _, begin, sections, _, _, size, count, section_size, section_count, _ = (
        _HEADER.unpack_from(content)
    )
    with open(sys.executable, "rb") as file:
        own: int = _HEADER.unpack_from(file.read(_HEADER.size))[1]
    if kind != _SHARED or machine != own:
        return "it is no library for this kind of processor"
    segments = [_segment(content, begin + number * size) for number in range(count)]
    ends = [segment.offset + segment.size for segment in segments]
    if max((*ends, sections + section_size * section_count)) > len(content):
        return "it is damaged or truncated"
    absent = [name for name in _needed(path, content, segments) if not _is_loadable(name)]
    if absent:
        return f"it needs {', '.join(absent)}, which cannot be loaded"
    if f"\0{ENTRY_POINT}\0".encode() not in content:
        return f"unable to find required entrypoint '{ENTRY_POINT}' in shared library"
    return ""


def _segment(content: bytes, offset: int) -> _Segment:
    kind, _, start, address, _, size, _, _ = _SEGMENT.unpack_from(content, offset)
    return _Segment(kind, start, address, size)


def _needed(path: Path, content: bytes, segments: list[_Segment]) -> Iterator[str]:
    """Yield the libraries that a library is linked with, but for ours and those beside it."""
    entries = [
        _ENTRY.unpack_from(content, offset)
        for segment in segments
        if segment.kind == _DYNAMIC
        for offset in range(segment.offset, segment.offset + segment.size, _ENTRY.size)
    ]
    address = next((value for tag, value in entries if tag == _TEXTS), 0)
    texts = next((s for s in segments if s.kind == _LOAD and s.address <= address < s.address + s.size), None)
    if texts is None:
        return
    begin = address - texts.address + texts.offset

    def text(value: int) -> str:
        return content[begin + value : content.index(b"\0", begin + value)].decode()

    paths = [text(value) for tag, value in entries if tag in (_RPATH, _RUNPATH)]
    folders = [folder.replace("$ORIGIN", str(path.parent)) for each in paths for folder in each.split(":")]
    for name in [text(value) for tag, value in entries if tag == _NEEDED]:
        if name != NAME and not any(os.path.isfile(os.path.join(folder, name)) for folder in folders):
            yield name


def _is_loadable(name: str) -> bool:
    """Return whether the system has a library; it is of no model, so it may be loaded."""
    if "/" in name:
        return os.path.isfile(name)
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
