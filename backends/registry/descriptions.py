"""Reads the descriptions of backends: those in the folders of `backends`, and those that packages offer."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Final

import backends
from app.core.installed.own_modules import import_own
from backends.description import BackendDescription
from backends.registry.entry_points import entry_points, is_description, offered

logger = logging.getLogger(__name__)

_FOLDERS: Final = ("", "packaged")
"""Of `backends`: where backends have theirs."""


def described(name: str) -> BackendDescription:
    """Return the description of a backend; one that says nothing if there is none."""
    own = _found(name)
    return own if own is not None else BackendDescription(name=name)


def is_described(name: str) -> bool:
    """Whether a backend has a description."""
    return _found(name) is not None


def descriptions() -> Sequence[BackendDescription]:
    """Return all descriptions, in the order in which models' files are looked for."""
    by_name = {each.name: each for each in _built_in()}
    for entry_point in filter(is_description, entry_points()):
        if (own := _offered(entry_point)) is not None:
            by_name[own.name] = own
    return sorted(by_name.values(), key=lambda each: (each.order, each.name))


def of_module(module: ModuleType) -> Sequence[BackendDescription]:
    place = {"folder": Path(str(module.__file__)).parent, "package": str(module.__package__)}
    return [replace(each, **place) for each in module.BACKENDS]


def _found(name: str) -> BackendDescription | None:
    for entry_point in filter(is_description, offered(name)):
        return _offered(entry_point)
    return next((each for each in _built_in() if each.name == name), None)


@lru_cache(64)
def _offered(entry_point: EntryPoint) -> BackendDescription | None:
    """Return the description that a package offers; None for a faulty one, which harms no other backend."""
    try:
        return next(each for each in of_module(entry_point.load()) if each.name == entry_point.name)
    except Exception:
        logger.exception("the description '%s' of backend '%s'", entry_point.value, entry_point.name)
        return None


def _built_in() -> Sequence[BackendDescription]:
    return _in_folders(tuple(backends.__path__))


@lru_cache(4)
def _in_folders(paths: Sequence[str]) -> Sequence[BackendDescription]:
    modules = (import_own(name) for path in paths for name in _modules_in(Path(path)))
    return [each for module in modules for each in of_module(module)]


def _modules_in(path: Path) -> Iterator[str]:
    for folder in _FOLDERS:
        for file in sorted((path / folder).glob("*/description.py")):
            yield ".".join(("backends", *file.relative_to(path).with_suffix("").parts))
