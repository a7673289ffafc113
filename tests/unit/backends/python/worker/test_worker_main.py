"""The program of a worker process, in an environment that has numpy and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.native.choice import missing
from backends.python.worker import worker_main
from tests.server import ROOT

not_compiled = pytest.mark.skipif(bool(missing()), reason=missing())

IMPORT = """
import runpy, sys

class OnlyNumpy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("app", "backends", "nereid_client", "numpy"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, OnlyNumpy())
main = runpy.run_path(sys.argv[1])
main["find_our_modules"]()
worker = main["import_worker"]()
if len(sys.argv) > 2:
    worker.use_compiled_strings()
    strings = sys.modules["_nereid.app.core.datatypes"]
    assert strings.STRINGS.is_compiled
    assert strings.unpack_bytes(strings.pack_bytes(["a", b"bc"])) == [b"a", b"bc"]
import nereid_client.vision
print(nereid_client.vision.__file__)
"""


@pytest.mark.parametrize("more", [(), pytest.param((worker_main.COMPILED,), marks=not_compiled)])
def test_worker_needs_numpy_alone(more: tuple[str, ...]) -> None:
    command = [sys.executable, "-s", "-c", IMPORT, str(Path(worker_main.__file__)), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{ROOT / 'client/nereid_client/vision/__init__.py'}\n", done.stderr
