"""XML files of OpenVINO's models, checked before they are parsed in memory. Imports no framework."""

import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 << 20


def check_xml(path: Path, limit: int = MAX_BYTES, hint: str = "") -> None:
    """Refuse a file that is too large, or declares entities: no model has a document type.

    Raises:
        ValueError: with the reason; `hint` follows that for the size.
    """
    size = os.path.getsize(path)
    if size > limit:
        raise ValueError(f"'{path}' has {size} bytes, at most {limit} are read{hint}")
    if b"<!DOCTYPE" in path.read_bytes():
        raise ValueError(f"'{path}' has a document type declaration, which no OpenVINO model has")
