"""Generation by the packaged backend `llm` on a GPU, in an environment that has transformers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from backends.base import Model
from backends.python.backend import PythonBackend
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.backends.llm import serving, write_model
from tests.unit.backend_harness import Served, config


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, write_model.__file__, folder], check=True, timeout=100)
    return folder


@pytest.fixture(params=["small", "sliding"])
def model(request: pytest.FixtureRequest, root: Path) -> Iterator[tuple[Served, dict[str, str]]]:
    """A model, and the texts that transformers generates by it on the CPU."""
    folder = root / request.param
    loaded = Model(config(f'name: "{request.param}" backend: "llm"'), 1, folder)
    loaded.common_file = BackendPlace("llm", None).python_file
    loaded.interpreter = Path(sys.executable)
    loaded.config = PythonBackend.auto_complete(loaded)
    served = Served(find_backend(BackendPlace("llm")), loaded, kind="GPU")
    yield served, json.loads((folder / "expected.json").read_text())
    served.close()


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_those_of_the_cpu(model: tuple[Served, dict[str, str]], stream: bool) -> None:
    served, expected = model
    calls = {
        prompt: serving.ask(served, prompt, {}, stream=stream, exclude_input_in_output=True)
        for prompt in expected
    }
    assert {prompt: serving.text_of(call) for prompt, call in calls.items()} == expected


def test_samples_repeat_by_their_seed(model: tuple[Served, dict[str, str]]) -> None:
    parameters = {"temperature": 1.5, "top_p": 0.9, "top_k": 50, "presence_penalty": 0.5, "seed": 7}
    texts = [serving.text_of(serving.ask(model[0], "The old", parameters)) for _ in range(2)]
    assert texts[0] == texts[1]
