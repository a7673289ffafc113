"""Fixtures of the composed fronts' tests."""

from contextlib import contextmanager

import pytest

from tests.unit.ingress.fronts.settings_fronts import Running


@pytest.fixture
def fronts(tmp_path):
    """Starts fronts with given settings."""

    @contextmanager
    def start(**args):
        running = Running(tmp_path, **args)
        try:
            yield running
        finally:
            running.close()

    return start
