"""Fixtures of the console's tests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.unit.app.console.running_console import RunningConsole

Consoles = Callable[..., AbstractContextManager[RunningConsole]]


@pytest.fixture
def consoles(tmp_path: Path) -> Consoles:
    """Starts consoles; the arguments are those of `RunningConsole`."""

    @contextmanager
    def start(**args: Any) -> Iterator[RunningConsole]:
        running = RunningConsole(tmp_path, **args)
        try:
            yield running
        finally:
            running.close()

    return start


@pytest.fixture
def console(consoles: Consoles) -> Iterator[RunningConsole]:
    """A console over a service that answers `identity`."""
    with consoles() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found
