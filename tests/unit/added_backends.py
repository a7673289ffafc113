"""Backends of which only a test knows: folders beside those of `backends`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import backends


@contextmanager
def added_backends(root: Path) -> Iterator[None]:
    """Have the folders in a directory be folders of `backends`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "__path__", [*backends.__path__, str(root)])
        try:
            yield
        finally:
            prefixes = tuple(f"backends.{folder.name}" for folder in root.iterdir())
            for name in [name for name in sys.modules if name.startswith(prefixes)]:
                del sys.modules[name]
