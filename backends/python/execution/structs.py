"""Replacement of `msgspec.Struct` in worker processes, whose environment may have no msgspec."""

from dataclasses import dataclass, field
from typing import Any


class Struct:
    """Makes a dataclass of every subclass; a mutable default is copied, as msgspec does."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, dict | list | set) and name in cls.__annotations__:
                setattr(cls, name, field(default_factory=value.copy))
        dataclass(cls)
