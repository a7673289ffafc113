"""Fixtures of the tests of pages that need models which answer."""

from collections.abc import Iterator

import pytest

from tests.unit.app.console.static.pages.tried import Tried


@pytest.fixture(scope="package")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    """A server of small models, and a console over it."""
    found = Tried(tmp_path_factory.mktemp("tried"))
    yield found
    found.close()
