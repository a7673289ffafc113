"""Replacement of `msgspec` in worker processes, whose environment may have none."""

import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from app.core.installed.own_modules import PREFIX, import_own

structs: Final = SimpleNamespace(force_setattr=setattr)  # nothing is frozen here


_importing = threading.RLock()


class Struct:
    """Makes a dataclass of every subclass; a mutable default is copied, as msgspec does."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, dict | list | set) and name in cls.__annotations__:
                setattr(cls, name, field(default_factory=value.copy))
        dataclass(cls)


def import_ours(name: str) -> ModuleType:
    """Import one of our modules, which uses this one as `msgspec`; by one thread at a time."""
    with _importing:
        if (loaded := sys.modules.get(PREFIX + name)) is not None:
            return loaded
        original = sys.modules.get("msgspec")
        sys.modules["msgspec"] = sys.modules[__name__]
        try:
            return import_own(name)
        finally:
            if original is None:
                del sys.modules["msgspec"]
            else:
                sys.modules["msgspec"] = original
