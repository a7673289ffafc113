"""Every name that Triton documents of `triton_python_backend_utils`, tried here and in a process."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.python.api import pb_utils, server_api
from backends.python.backend import PythonBackend
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.python.api.documented_surface import EVERYTHING, MODEL
from tests.unit.backends.python.worker.test_process import Answering
from tests.unit.python_models import text, write


@pytest.fixture(scope="module", params=["here", "process"])
def served(
    request: pytest.FixtureRequest, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = write(tmp_path_factory.mktemp("surface"), MODEL)
    interpreter = python if request.param == "process" else None
    made = Served(PythonBackend, config(text("TYPE_STRING")), folder, interpreter=interpreter)
    yield made
    made.close()


@pytest.mark.parametrize("expression", EVERYTHING)
def test_documented_name_works(expression: str, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_api._Installed, "api", Answering())
    (call,) = served(infer({"I": [[b"x"]]}, parameters={"evaluate": expression}, id="asked"))
    assert json.loads(call.arrays["O"][0, 0]) == EVERYTHING[expression]


def members(owner: Any) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


OURS = {
    "InferenceRequest": {"target", "preferred_memory"},
    "PreferredMemory": {"device_id", "memory_type"},
    "ResponseIterator": {"end", "receive", "set_cancel"},
    "TritonError": {"of", "as_infer_error"},
    "TritonModelException": {"add_note", "args", "with_traceback", "message"},
}
"""What Triton's classes do not have."""


def test_every_public_name_is_tested() -> None:
    """A name of ours that no expression uses is one that nobody tries."""
    everything = " ".join((*EVERYTHING, MODEL))
    tried = set(re.findall(r"\w+", everything))
    for name in pb_utils.__all__:
        assert name in tried, name
        member = getattr(pb_utils, name)
        if inspect.isclass(member):
            missing = members(member) - tried - OURS.get(name, set())
            assert not missing, (name, missing)
