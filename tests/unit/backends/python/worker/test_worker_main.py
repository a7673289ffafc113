"""The program of a worker process, in an environment that has numpy and nothing else."""

import subprocess
import sys
from pathlib import Path

from backends.python.worker import worker_main
from tests.server import ROOT

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
main["import_worker"]()
import nereid_client.vision
print(nereid_client.vision.__file__)
"""


def test_worker_needs_numpy_alone() -> None:
    command = [sys.executable, "-s", "-c", IMPORT, str(Path(worker_main.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{ROOT / 'client/nereid_client/vision/__init__.py'}\n", done.stderr
