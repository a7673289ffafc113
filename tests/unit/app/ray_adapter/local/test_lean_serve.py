"""The import of Serve without pandas and what it spares, in processes of their own."""

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

SPARED = """
import sys
import app.ray_adapter.local.lean_serve
from ray import cloudpickle
from ray.serve import config
from ray.util import serialization_addons

pickled = []
dumps = cloudpickle.dumps
config.cloudpickle.dumps = lambda value: pickled.append(value.__name__) or dumps(value)
routers = (
    None, None, "app.ray_adapter.serve.router:DirectRouter", "app.ray_adapter.serve.router:DirectRouter"
)
made = [config.RequestRouterConfig(**({"request_router_class": each} if each else {})) for each in routers]
print(pickled, [each.get_request_router_class().__name__ for each in made])

class Context:
    registered = []
    def _register_cloudpickle_serializer(self, kind, **given): self.registered.append(kind.__module__)
    def _register_cloudpickle_reducer(self, kind, reduce): self.registered.append(kind.__module__)

serialization_addons.apply(Context())
print("pyarrow" in sys.modules)
import pyarrow
serialization_addons.apply(Context())
print(any(name.startswith("pyarrow") for name in Context.registered))
"""


def test_serve_and_ray_do_not_repeat_what_they_have_done() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPARED], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    routers = ["PowerOfTwoChoicesRequestRouter", "DirectRouter"]
    found = [routers[0], routers[0], routers[1], routers[1]]
    assert done.stdout.splitlines() == [f"{routers} {found}", "False", "True"], done.stderr


def test_serve_is_imported_without_pandas_and_encodes_its_frames() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[True, False, False]", "[[{'a': 1}, {'a': 2}], 3]"]
