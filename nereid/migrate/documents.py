"""Documents of strangers, JSON and YAML: bounded in size, depth and number of values, and read by types."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from nereid.migrate.plan import MigrationError, read_bounded

MAX_TEXT: Final = 4 << 20
_MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 200_000
"""Values of a YAML file, with what its aliases repeat."""
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_Base: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
T = TypeVar("T")


class _Loader(_Base):  # type: ignore[misc]
    """Makes strings of all scalars, which `typed` converts: no tag means anything, no key merges others."""

    def construct_scalar(self, node: Any) -> Any:
        return None if not node.style and node.value in _NULLS else super().construct_scalar(node)


def typed(document: Any, kind: type[T], what: object) -> T:
    """Return a document as a type that msgspec knows; texts of numbers are numbers where those are wanted.

    Raises:
        MigrationError: it has another shape.
    """
    try:
        return msgspec.convert(document, kind, strict=False)
    except msgspec.ValidationError as error:
        raise MigrationError(f"{what}: {error}") from None


def parse_json(content: bytes, what: object, kind: Any = Any) -> Any:
    """Return a JSON document, of a type if one is given: then nothing is made of what that lacks.

    Raises:
        MigrationError: it is none.
    """
    try:
        return msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise MigrationError(f"{what}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MigrationError(f"{what} is no JSON: {error}") from None
    except RecursionError:
        raise MigrationError(f"{what} is nested too deeply") from None


def parse_yaml(content: bytes, what: object) -> list[Any]:
    """Return the documents of a YAML file; their scalars are strings and None.

    Raises:
        MigrationError: it is none, or larger than anybody writes.
    """
    try:
        _check_depth(content)
        return list(_documents(content))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MigrationError(f"{what} cannot be read as YAML: {error}") from None


def _check_depth(content: bytes) -> None:
    """Check, without recursion, that what follows may recurse."""
    depth = values = 0
    for event in yaml.parse(content, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        values += isinstance(event, yaml.NodeEvent)
        if depth > _MAX_DEPTH or values > _MAX_VALUES:
            raise ValueError(
                f"it is nested more than {_MAX_DEPTH} deep, or has more than {_MAX_VALUES} values"
            )


def _documents(content: bytes) -> Iterator[Any]:
    loader = _Loader(content)
    try:
        left = _MAX_VALUES
        while loader.check_node():
            node = loader.get_node()
            left -= _size(node, {})
            if left < 0:
                raise ValueError(f"its aliases make more than {_MAX_VALUES} values of it")
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of values that a node stands for, aliases followed; a node in itself is too many."""
    if id(node) not in known:
        known[id(node)] = _MAX_VALUES
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (child if isinstance(child, tuple) else (child,) for child in children)
        known[id(node)] = 1 + sum(_size(child, known) for pair in pairs for child in pair)
    return known[id(node)]


def resources(source: Path) -> list[dict[str, Any]]:
    """Return the Kubernetes resources of a YAML file, those of its lists among them.

    Raises:
        MigrationError: it cannot be read.
    """
    found: list[dict[str, Any]] = []
    for document in parse_yaml(read_bounded(source, MAX_TEXT), source):
        each = document if isinstance(document, dict) else {}
        items = each.get("items") if each.get("kind") == "List" else [each]
        found += (item for item in items or () if isinstance(item, dict))
    return found


def name_of(resource: dict[str, Any]) -> str:
    """Return how to call a Kubernetes resource, which may be wrong in any way."""
    metadata = resource.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else "?"
