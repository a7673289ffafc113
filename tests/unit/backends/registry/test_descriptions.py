"""Descriptions of backends: what they say is true, and a folder with one is all that a backend takes."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import InferError
from backends.description import BackendDescription
from backends.model_files import ModelFile
from backends.registry.descriptions import described, descriptions
from backends.registry.file_kinds import KINDS, describe, foreign
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from nereid.engine.engine import Engine
from tests.unit.added_backends import added_backends
from tests.unit.test_docs import code_blocks

ROOT = Path(__file__).parents[4]
ALL = pytest.mark.parametrize("backend", descriptions(), ids=lambda backend: backend.name)


@ALL
def test_what_it_names_exists(backend: BackendDescription) -> None:
    module, _, name = backend.backend.partition(":")
    file = backend.folder / f"{module or 'model'}.py"
    assert re.search(rf"^class {name or 'TritonPythonModel'}\b", file.read_text(), re.MULTILINE)
    assert not backend.python_file or (backend.folder / backend.python_file).is_file()
    assert backend.requirements.is_file() == (backend.hosted or backend.packaged)


@ALL
def test_its_extra_installs_its_modules(backend: BackendDescription) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert bool(backend.modules) == bool(backend.extra)
    for module in backend.modules:
        assert any(requirement.startswith(module) for requirement in extras[backend.extra]), module


def test_names_are_of_one_backend() -> None:
    names = Counter(name for backend in descriptions() for name in (backend.name, *backend.aliases))
    assert {name for name, count in names.items() if count > 1} == set()
    assert set(names.values()) == {1}


def test_each_kind_of_file_is_served_by_one_backend() -> None:
    served = Counter(kind for backend in descriptions() for kind in backend.kinds)
    assert served == Counter(kind.name for kind in KINDS if kind.name)


def test_they_are_read_without_frameworks() -> None:
    """Nor numpy: processes of other environments read them too."""
    code = (
        "import sys; from backends.registry.descriptions import descriptions;"
        "print({'numpy', 'tritonclient', 'google'}"
        ".union(module for each in descriptions() for module in each.modules) & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr[-2000:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the documentation's example."""
    folder = tmp_path / "added" / "my_scale"
    folder.mkdir(parents=True)
    backend, description = code_blocks("docs/develop/backends.md", "python")[:2]
    (folder / "backend.py").write_text(backend)
    (folder / "description.py").write_text(description)
    return folder


@pytest.fixture(params=["folder", "entry point"])
def added(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as a folder of `backends`, and as one of a package that pip has installed."""
    if request.param == "folder":
        with added_backends(folder.parent):
            yield
        return
    information = folder.parent / "my_scale-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my_scale\nVersion: 1.0\n")
    (text,) = code_blocks("docs/develop/backends.md", "toml")
    (information / "entry_points.txt").write_text(text.replace("project.entry-points.", "").replace('"', ""))
    monkeypatch.syspath_prepend(folder.parent)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_scale"]:
        del sys.modules[name]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model of the example's that is its file alone, and one whose file is missing."""
    for name in ("half", "none"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    (tmp_path / "models" / "half" / "1" / "factor.txt").write_text("0.5")
    (tmp_path / "models" / "none" / "config.pbtxt").write_text('backend: "scale"')
    (tmp_path / "models" / "none" / "1" / "other.txt").write_text("0.5")
    return tmp_path / "models"


@pytest.mark.usefixtures("added")
def test_a_folder_is_all_that_a_backend_takes(repository: Path) -> None:
    with Engine.open(model_repository=[str(repository)], model_control_mode="explicit") as engine:
        engine.load("half")
        assert engine.infer("half", {"INPUT": np.array([3.0], np.float32)})["OUTPUT"].tolist() == [1.5]
        config = engine.config("half")
        assert config.backend == "scale" and config.default_model_filename == "factor.txt"
        assert [group.count for group in config.instance_group] == [2]
        with pytest.raises(InferError) as caught:
            engine.load("none")
        text = f"unable to find '{repository}/none/1/factor.txt' for model instance 'none'. Found in "
        assert text in caught.value.message and "'other.txt'" in caught.value.message
        (repository / "none" / "config.pbtxt").write_text('backend: "scaling"')
        with pytest.raises(InferError, match="Did you mean 'scale'"):
            engine.load("none")


def test_a_description_brings_kinds_of_files(folder: Path) -> None:
    text = (folder / "description.py").read_text().replace("import ", "import FileKind, ")
    kind = "FileKind('a factor', 'name it factor.txt', lambda file: file.ends('.factor'))"
    (folder / "description.py").write_text(
        text.replace("    formats=", f"    kinds=({kind},),\n        formats=")
    )
    with added_backends(folder.parent):
        assert describe([ModelFile("my.factor")]) == (
            "'my.factor' is a factor. Name it factor.txt, which the backend 'scale' serves."
        )
        assert foreign(ModelFile("", b"GGUF"), "scale").startswith("'' is a GGUF file of llama.cpp.")
    assert describe([ModelFile("my.factor")]) == ""


def test_a_faulty_description_harms_no_other_backend(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    information = folder.parent / "faulty-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[nereid.backends]\nfaulty = no_such.description\n")
    monkeypatch.syspath_prepend(folder.parent)
    assert "faulty" not in {backend.name for backend in descriptions()}
    assert "no_such.description" in caplog.text
    with pytest.raises(InferError) as caught:
        find_backend(BackendPlace("faulty"))
    assert caught.value.message == (
        "unable to load backend library for backend 'faulty': No module named 'no_such'"
    )
    assert described("faulty") == BackendDescription(name="faulty")
