"""Finding backends by name."""

import pickle
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.installed.installation import install_command
from backends.base import Backend, Model
from backends.registry import entry_points
from backends.registry.loading import backend_names, find_backend
from backends.registry.place import BackendPlace
from backends.teaching.identity import IdentityBackend
from tests.environments import make
from tests.unit.backend_harness import Served, config, infer

CUSTOM = """
from backends.base import Backend
from .helper import ANSWER

class TritonBackend(Backend):
    answer = ANSWER

    def instance_execute(self, instance, requests):
        pass
"""


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "backend.py").write_text(CUSTOM)
    (folder / "helper.py").write_text("ANSWER = 42\n")
    return tmp_path


def test_built_in_backends_are_found() -> None:
    assert find_backend(BackendPlace("identity")) is IdentityBackend
    for name in ("repeat", "square", "python", "sequence", "dyna_sequence", "iterative_sequence"):
        assert issubclass(find_backend(BackendPlace(name)), Backend)


def test_backend_directory_comes_first_and_may_import_its_neighbours(custom: Path) -> None:
    found = find_backend(BackendPlace("identity", custom))
    assert found.answer == 42  # type: ignore[attr-defined]
    assert find_backend(BackendPlace("identity", custom)) is found


def test_backend_directory_without_the_name_is_passed_over(custom: Path) -> None:
    assert issubclass(find_backend(BackendPlace("square", custom)), Backend)


def test_installed_package_offers_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: a module, and a .dist-info that names it."""
    (tmp_path / "offered_backend.py").write_text(CUSTOM.replace("from .helper import ANSWER", "ANSWER = 43"))
    information = tmp_path / "offered-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[nereid.backends]\noffered = offered_backend:TritonBackend\nsquare = offered_backend:TritonBackend\n"
        "odd = offered_backend:ANSWER\ngone = no_such_module:TritonBackend\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = find_backend(BackendPlace("offered"))
    assert found.answer == 43  # type: ignore[attr-defined]
    assert "offered" in backend_names()
    assert find_backend(BackendPlace("square")) is found, "before the built-in backends"
    with pytest.raises(InferError, match="is not a subclass of"):
        find_backend(BackendPlace("odd"))
    with pytest.raises(
        InferError, match="unable to load backend library for backend 'gone': No module named"
    ):
        find_backend(BackendPlace("gone"))


def test_installed_packages_are_read_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: list[str]) -> Iterable[Distribution]:
        read.extend(path)
        return distributions(path=path)

    monkeypatch.setattr(entry_points, "distributions", counted)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    for _ in range(2):
        assert not BackendPlace("offered").is_custom
    assert read == [str(tmp_path)]
    information = tmp_path / "offered-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[nereid.backends]\noffered = m:B\n")
    assert BackendPlace("offered").is_custom and not BackendPlace("other").is_custom


PYTHON_BASED = """
import os
import triton_python_backend_utils as pb_utils
from scale import FACTOR

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        return config

    def initialize(self, args):
        directory = os.path.join(args["model_repository"], args["model_version"])
        assert directory == pb_utils.get_model_dir()
        with open(os.path.join(directory, "offset")) as offset:
            self.offset = float(offset.read())

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "I")) for request in requests]

    def answer(self, tensor):
        output = pb_utils.Tensor("O", FACTOR * tensor.as_numpy() + self.offset)
        return pb_utils.InferenceResponse([output])
"""


def test_python_based_backend_executes_every_model_that_names_it(tmp_path: Path) -> None:
    """Triton's layout: `<backend directory>/<name>/model.py`; a model's directory holds its data only."""
    folder = tmp_path / "backends" / "scaled"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_BASED)
    (folder / "scale.py").write_text("import numpy as np\nFACTOR = np.float32(10)\n")
    kind = find_backend(BackendPlace("scaled", tmp_path / "backends"))
    for name, offset in (("a", 1), ("b", 2)):
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True)
        (directory / "1" / "offset").write_text(str(offset))
        declared = config(f'name: "{name}" backend: "scaled"')
        model = Model(declared, 1, directory)
        model.common_file = BackendPlace("scaled", tmp_path / "backends").python_file
        model.config = kind.auto_complete(model)
        served = Served(kind, model)
        (call,) = served(infer({"I": np.ones((1, 2), np.float32)}))
        assert call.arrays["O"].tolist() == [[10 + offset] * 2]
        served.close()


def test_python_based_backend_in_an_environment_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "backends" / "scaled"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(PYTHON_BASED)
    (folder / "scale.py").write_text("import only_here\nimport numpy as np\nFACTOR = np.float32(10)\n")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "offset").write_text("3")
    model = Model(config('name: "m" backend: "scaled"'), 1, tmp_path / "m")
    model.common_file = folder / "model.py"
    model.interpreter = make(folder / "venv")
    kind = find_backend(BackendPlace("scaled", tmp_path / "backends"))
    model.config = kind.auto_complete(model)
    assert model.config.output[0].name == "O"
    served = Served(kind, model)
    (call,) = served(infer({"I": np.ones((1, 2), np.float32)}))
    assert call.arrays["O"].tolist() == [[13] * 2]
    served.close()


def test_python_based_backend_is_found_again_by_the_processes_it_starts(tmp_path: Path) -> None:
    """What it hands them is pickled: their `sys.path` is ours, so the name of its module is `model`."""
    folder = tmp_path / "b"
    (tmp_path / "m" / "1").mkdir(parents=True)
    folder.mkdir()
    (folder / "model.py").write_text("class TritonPythonModel:\n    execute = None\n")
    model = Model(config('name: "m" backend: "b"'), 1, tmp_path / "m")
    model.common_file = BackendPlace("b", tmp_path).python_file
    served = Served(find_backend(BackendPlace("b", tmp_path)), model)
    kind = type(served.instance.state.model)
    assert pickle.loads(pickle.dumps(kind)) is kind and kind.__module__ == "model"
    served.close()
    assert "model" not in sys.modules


def test_python_based_backend_executes_python(tmp_path: Path) -> None:
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "model.py").write_text(PYTHON_BASED)
    assert BackendPlace("scaled", tmp_path).executes_python
    assert BackendPlace("python", None).executes_python
    assert not BackendPlace("scaled", None).executes_python
    (tmp_path / "scaled" / "backend.py").write_text("")
    assert not BackendPlace("scaled", tmp_path).executes_python, "backend.py comes first"


def test_library_is_found_in_tritons_order(tmp_path: Path) -> None:
    """The version's directory, the model's, the backend's; there before model.py and built-in backends."""
    own = tmp_path / "backends" / "identity"
    folders = (tmp_path / "m" / "1", tmp_path / "m")
    for folder in (own, *reversed(folders)):
        folder.mkdir(parents=True)
        (folder / "libtriton_identity.so").write_text("")
    (own / "model.py").write_text("")

    for folder in (*folders, own):
        path = folder / "libtriton_identity.so"
        assert BackendPlace("identity", own.parent, "", folders).library == path
        assert (
            find_backend(BackendPlace("identity", own.parent, model_folders=folders)).__dict__["path"] == path
        )
        assert BackendPlace("identity", own.parent, model_folders=folders).python_file is None
        assert BackendPlace("identity", own.parent, "", folders).is_custom
        path.unlink()
    assert BackendPlace("identity", own.parent, "", folders).library is None
    assert BackendPlace("identity", own.parent, model_folders=folders).python_file == own / "model.py"


def test_runtime_names_the_library(tmp_path: Path) -> None:
    """In the same folders; then neither the usual library nor a built-in backend is what is wanted."""
    own = tmp_path / "backends" / "identity"
    folders = (tmp_path / "m" / "1", tmp_path / "m")
    where = ("identity", own.parent, "libtriton_fast.so", folders)
    for folder in (own, *reversed(folders)):
        folder.mkdir(parents=True)
        for name in ("fast", "identity"):
            (folder / f"libtriton_{name}.so").write_text("")

    for folder in (*folders, own):
        path = folder / "libtriton_fast.so"
        assert BackendPlace(*where).library == path
        assert find_backend(BackendPlace(*where)).__dict__["path"] == path
        path.unlink()
    assert BackendPlace(*where).library is None
    with pytest.raises(InferError, match="unable to find backend library"):
        find_backend(BackendPlace(*where))
    usual = find_backend(BackendPlace("identity", own.parent, "libtriton_identity.so", folders))
    assert usual.__dict__["path"] == folders[0] / "libtriton_identity.so"


@pytest.mark.parametrize(
    "runtime", ["../libtriton_x.so", "/libtriton_x.so", "a/libtriton_x.so", "weights.so"]
)
def test_runtime_is_the_name_of_a_library_in_those_folders(runtime: str, tmp_path: Path) -> None:
    (tmp_path / "identity" / "a").mkdir(parents=True)
    for name in ("libtriton_x.so", "identity/a/libtriton_x.so", "identity/weights.so"):
        (tmp_path / name).write_text("")
    assert BackendPlace("identity", tmp_path, runtime).library is None


def test_runtime_in_python_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("libtriton_mine.so", "model.py"):
        (tmp_path / "mine" / name).write_text("")
    assert BackendPlace("mine", tmp_path).python_file is None
    assert BackendPlace("mine", tmp_path, "model.py").python_file == tmp_path / "mine" / "model.py"


def test_backend_in_python_goes_before_its_library(custom: Path) -> None:
    (custom / "identity" / "libtriton_identity.so").write_text("")
    assert find_backend(BackendPlace("identity", custom)).answer == 42  # type: ignore[attr-defined]


def test_library_of_tritons_python_backend_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "libtriton_python.so").write_text("")
    assert find_backend(BackendPlace("python", tmp_path)) is find_backend(BackendPlace("python"))
    assert not BackendPlace("python", tmp_path).is_custom


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "..", "", "a\\b", "a\0b"])
def test_names_cannot_leave_the_backend_directory(name: str, custom: Path) -> None:
    with pytest.raises(InferError) as caught:
        find_backend(BackendPlace(name, custom))
    assert caught.value.message == f"backend library name '{name}' escapes backend directory"


def test_unknown_backend(custom: Path) -> None:
    with pytest.raises(InferError) as caught:
        find_backend(BackendPlace("unknown", custom))
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "unable to find backend library for backend 'unknown', try specifying runtime on the"
        " model configuration."
    )


def test_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "backends.pytorch.backend", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InferError) as caught:
        find_backend(BackendPlace("pytorch"))
    assert caught.value.message == (
        "backend 'pytorch' needs PyTorch, which is not installed; install the extra:"
        f" {install_command('pytorch')}"
    )


def test_directory_backend_that_fails_to_import(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "backend.py").write_text("raise RuntimeError('boom')\n")
    with pytest.raises(InferError, match="unable to load backend library for backend 'broken': boom"):
        find_backend(BackendPlace("broken", tmp_path))


def test_directory_backend_of_the_wrong_kind(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "backend.py").write_text("TritonBackend = 3\n")
    with pytest.raises(InferError, match="is not a subclass of"):
        find_backend(BackendPlace("odd", tmp_path))


def test_importing_the_registry_imports_no_framework() -> None:
    code = (
        "import sys, backends.registry.loading; sys.exit(bool({'torch', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
