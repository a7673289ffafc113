"""Models of a packaged backend: made and served in the environment that the backend has."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.base import Model
from backends.python.backend import PythonBackend
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from deployments.environments.packaged import PackagedEnvironments
from deployments.environments.prepare import prepare
from nereid.engine.engine import Engine
from tests.unit.backend_harness import Served

_WRITER_S = 100
_ROOM = 1 << 30
_AT_ONCE = 8
_ROOT = Path(__file__).parent.parent.parent


def write_models(backend: str, writer: Path, root: Path) -> None:
    """Run the script that makes models below `root`; skip where the backend is not installed."""
    lease = PackagedEnvironments().lease(backend)
    if lease is None:
        pytest.skip(f"'nereid backends install {backend}' has not been run")
    try:
        python = lease.directory / "bin" / "python"
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        command = [str(python), "-s", str(writer), str(root)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_WRITER_S)
    finally:
        lease.release()


def serve_model(
    backend: str, model: Model, at_end: Callable[[Callable[[], None]], None], completed: bool = False
) -> Served:
    """Serve a model; `at_end` is given what must be called after the test, in the reverse order.

    Args:
        completed: complete its configuration first.
    """
    model.common_file = BackendPlace(backend, None).python_file
    environment = prepare(model, _ROOM)
    at_end(environment.release)
    model.interpreter = environment.python
    if completed:
        model.config = PythonBackend.auto_complete(model)
    served = Served(find_backend(BackendPlace(backend)), model)
    at_end(served.close)
    return served


def failed_at_once(backend: str, model: Path, configuration: str, root: Path) -> list[str]:
    """Load eight copies of a model at once in one process; return why those fail that do."""
    for number in range(_AT_ONCE):
        folder = root / f"m{number}"
        shutil.copytree(model, folder)
        (folder / "config.pbtxt").write_text(f'backend: "{backend}" {configuration}')
    with Engine.open(model_repository=[str(root)], model_load_thread_count=_AT_ONCE) as engine:
        return [reason for _, _, state, reason in engine.index() if state != "READY"]
