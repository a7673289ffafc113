"""The committed reference of metrics."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from app.ingress import metrics
from app.ingress.metrics.family import Family
from app.ingress.metrics.reference import reference
from tests.expressions import documented_kinds

COMMITTED = Path(__file__).parents[5] / "docs" / "operate" / "metrics.md"


def families() -> Iterator[Family[object]]:
    """Yield the rows of all tables in the package."""
    for module in pkgutil.iter_modules(metrics.__path__, f"{metrics.__name__}."):
        for table in vars(import_module(module.name)).values():
            if isinstance(table, tuple):
                yield from (row for row in table if isinstance(row, Family))


def test_committed_reference_is_current() -> None:
    assert COMMITTED.read_text() == reference(), "PYTHONPATH=client python -m app.ingress.metrics.reference"


def test_each_family_that_exists_is_documented_and_no_other() -> None:
    assert documented_kinds() == {family.name: family.kind for family in families()}


def test_names_and_help_are_of_one_form() -> None:
    for family in families():
        assert family.name.startswith(("nv_", "nereid_", "process_")) and family.help.strip() == family.help
        assert family.help and "\n" not in family.help
