"""What tests of several packages use."""

import gc
import logging
from collections.abc import Iterator

import pytest
import ray

from app.core.observability.log import PACKAGES
from app.native.choice import missing
from app.transport.wire import compiled
from tests.certificates import Authority, Pair


@pytest.fixture(scope="session", autouse=True)
def no_cluster() -> Iterator[None]:
    """Ray is not started by accident: a cluster that one test leaves behind changes those after it."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a unit test starts Ray")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", refuse)
        patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
        yield


@pytest.fixture(scope="module", autouse=True)
def old_objects_frozen() -> Iterator[None]:
    """Have the collector look at what a module's tests make, and at nothing that was there before.

    A full collection takes a second where it looks at all that thousands of tests are and have left. Garbage
    that warns is found at the end of its own module.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture(params=["python", "native"])
def data_plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read, write and handle messages by Python, or by the extension where it is compiled."""
    if request.param == "native" and missing():
        pytest.skip(missing())
    monkeypatch.setattr(compiled, "is_native", lambda _: request.param == "native")
    return str(request.param)


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """A server whose log settings a test has changed keeps nothing from `caplog` in the tests after it."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    handlers = [logger.handlers for logger in loggers]
    yield
    for logger, kept in zip(loggers, handlers, strict=True):
        for handler in logger.handlers:
            if handler not in kept:
                handler.close()
        logger.handlers, logger.propagate = kept, True
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] in PACKAGES:  # `nereid dev` silences one below a package
            logging.getLogger(name).setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)
