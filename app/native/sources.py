"""The files that the extension is compiled from. `setup.py` uses this module too, so it needs no package."""

from hashlib import blake2b
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent


def digest() -> str:
    """Return a digest of the files, to tell an extension that was compiled from others; "" without files."""
    files = [*sorted(FOLDER.glob("*.c")), *sorted(FOLDER.glob("*.h"))]
    content = b"".join(path.read_bytes() for path in files)
    return blake2b(content, digest_size=12).hexdigest() if files else ""
