"""No module imports from a floor above its own, not even by a name in a string."""

import ast
import re

import pytest

from tests.unit.test_imports import imports, modules

FLOORS = ("nereid_client", "app", "backends", "deployments", "nereid")
"""The top-level folders from the lowest: each imports what is in it or in those before it."""
ONLY_NAMES = {"app.native.slots"}
"""It has the names of classes for a test, and imports none of them."""
NAMED = re.compile(rf"\b(?:{'|'.join(FLOORS)})(?:\.\w+)+")


def named(name: str) -> frozenset[str]:
    """Find our modules that a module has the names of in its strings, by which a program may import them."""
    tree = ast.parse(modules()[name].read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    chains = [found.split(".") for text in texts for found in NAMED.findall(text)]
    prefixes = {".".join(chain[:size]) for chain in chains for size in range(2, len(chain) + 1)}
    return frozenset(prefixes & modules().keys())


def floor(name: str) -> int:
    """Return the height of the top-level folder of a module."""
    return FLOORS.index(name.partition(".")[0])


@pytest.mark.parametrize("name", modules())
def test_nothing_imports_from_a_floor_above(name: str) -> None:
    ours = {each for each in imports(name) if each.partition(".")[0] in FLOORS}
    ours |= frozenset() if name in ONLY_NAMES else named(name)
    assert {each for each in ours if floor(each) > floor(name)} == set()
