"""The import of Serve without pandas, in a process of its own."""

import subprocess
import sys

from tests.server import ROOT

PROGRAM = """
import sys
import app.ray_adapter.local.lean_serve
print([name in sys.modules for name in ("ray.serve", "pandas", "pyarrow")])

import pandas
from fastapi.encoders import jsonable_encoder
from ray.serve._private.utils import serve_encoders
frame = pandas.DataFrame({"a": [1, 2]})
print(jsonable_encoder([frame, 3], custom_encoder=serve_encoders))
"""


def test_serve_is_imported_without_pandas_and_encodes_its_frames() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[True, False, False]", "[[{'a': 1}, {'a': 2}], 3]"]
