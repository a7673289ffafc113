"""Environments of packaged backends: installing, finding, choosing and removing them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from backends.base import Instance, Model
from backends.registry.descriptions import descriptions
from backends.registry.loading import backend_names, find_backend
from backends.registry.place import BackendPlace
from deployments.environments import packaged
from deployments.environments.packaged import PackagedEnvironments, data_directory
from deployments.environments.prepare import prepare
from nereid.commands import backends as command
from tests.environments import make
from tests.unit.added_backends import added_backends
from tests.unit.backend_harness import Call, Served, config, infer

MODEL = """
import only_here
from backends.packaged.array_model import ArrayModel

class TritonPythonModel(ArrayModel):
    def load(self):
        self.sizes = []

    def share(self, other):
        self.sizes = other.sizes

    def run(self, inputs):
        self.sizes.append(len(inputs["X"]))
        if (inputs["X"] < 0).any():
            raise ValueError("below zero")
        none = inputs["X"] * 0
        return {"Y": inputs["X"] * 2, "SIZE": none + self.sizes[-1], "RUNS": none + len(self.sizes)}
"""
CONFIG = """
    name: "m" backend: "doubling" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: 2 }
    output { name: "Y" data_type: TYPE_FP32 dims: 2 } output { name: "SIZE" data_type: TYPE_FP32 dims: 2 }
    output { name: "RUNS" data_type: TYPE_FP32 dims: 2 }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A backend of which only a test knows, and a directory of environments."""
    folder = tmp_path / "packaged" / "doubling"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "requirements.txt").write_text("numpy\n")
    described = "from backends.description import BackendDescription as Described"
    (folder / "description.py").write_text(f"{described}\nBACKENDS = (Described(name='doubling'),)\n")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def install(name: str, requirements: Path, root: Path, final: Path, shown: bool) -> None:
        make(root)
        print(f"installing {requirements.name} for {name}")

    monkeypatch.setattr(packaged, "install", install)
    with added_backends(folder.parent):
        yield folder


def model(**settings: str) -> Model:
    made = Model(config(CONFIG), 1, Path("nowhere"), settings)
    made.common_file = BackendPlace("doubling", None).python_file
    return made


def test_packaged_backend_is_found_behind_the_backend_directory(tmp_path: Path) -> None:
    assert find_backend(BackendPlace("doubling")).__name__ == "PythonBackend"
    assert BackendPlace("doubling").is_known and "doubling" in backend_names()
    assert BackendPlace("doubling", None).executes_python
    own = tmp_path / "own" / "doubling"
    own.mkdir(parents=True)
    (own / "model.py").touch()
    assert BackendPlace("doubling", tmp_path / "own").python_file == own / "model.py"


def test_missing_environment_names_the_command() -> None:
    with pytest.raises(InferError) as caught:
        prepare(model(), 1 << 30)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "'nereid backends install doubling' installs it" in caught.value.message


def test_installed_environment_is_used_until_the_requirements_change(home: Path) -> None:
    PackagedEnvironments().install("doubling").release()
    environment = prepare(model(), 1 << 30)
    assert environment.python is not None and environment.python.is_relative_to(data_directory())
    environment.release()
    (home / "requirements.txt").write_text("numpy>1\n")
    with pytest.raises(InferError, match="is not installed"):
        prepare(model(), 1 << 30)


def test_environment_is_installed_on_demand_if_allowed() -> None:
    environment = prepare(model(requirements="install"), 1 << 30)
    assert environment.python is not None
    environment.release()


def test_environment_of_the_server_or_of_a_path(tmp_path: Path) -> None:
    assert prepare(model(environment="server"), 1 << 30).python is None
    python = make(tmp_path / "other").with_name("python3")
    assert prepare(model(environment=str(tmp_path / "other")), 1 << 30).python == python
    with pytest.raises(InferError, match="does not exist, or is no program"):
        prepare(model(environment=str(tmp_path / "gone")), 1 << 30)


def test_command_installs_lists_and_removes(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert command.main(["list"]) == 0
    assert "not installed" in capsys.readouterr().out
    assert command.main(["install", "doubling"]) == 0
    printed = capsys.readouterr().out
    assert "installing requirements.txt for backend 'doubling'" in printed and " MB, " in printed
    environment = prepare(model(), 1 << 30)
    assert command.main(["remove", "doubling"]) == 1
    assert "is in use" in capsys.readouterr().err
    environment.release()
    (home / "requirements.txt").write_text("numpy>1\n")
    assert command.main(["list"]) == 0
    assert "of another version" in capsys.readouterr().out
    assert command.main(["remove", "doubling"]) == 0
    assert not PackagedEnvironments().installed()


def test_models_are_executed_in_the_environment_together(home: Path) -> None:
    """In a process of their own: `only_here` is a module of the environment."""
    lease = PackagedEnvironments().install("doubling")
    loaded = model()
    loaded.interpreter = lease.directory / "bin" / "python"
    served = Served(find_backend(BackendPlace("doubling")), loaded)
    rows = [np.full((count, 2), count, np.float32) for count in (1, 2)]
    calls = served(*[infer({"X": row}) for row in rows])
    assert [call.arrays["Y"].tolist() for call in calls] == [(2 * row).tolist() for row in rows]
    assert calls[0].arrays["SIZE"].tolist() == [[3, 3]]
    bad, good = served(infer({"X": -rows[0]}), infer({"X": rows[1]}))
    assert "below zero" in bad.error and good.arrays["SIZE"].tolist() == [[2, 2]] * 2
    served.close()
    lease.release()


@pytest.mark.parametrize("shared", ["true", "false"])
def test_instances_of_one_process_share_what_was_loaded(shared: str) -> None:
    lease = PackagedEnvironments().install("doubling")
    loaded = model()
    loaded.config.parameters["INSTANCES_SHARE_PROCESS"].string_value = shared
    loaded.interpreter = lease.directory / "bin" / "python"
    served = Served(find_backend(BackendPlace("doubling")), loaded)
    second = Instance(loaded, "m_0_1", index=1)
    served.backend.instance_initialize(second)
    assert (second.state.pid == served.instance.state.pid) == (shared == "true")
    call = Call(infer({"X": np.ones((3, 2), np.float32)}))
    served.backend.instance_execute(second, [call])
    runs = 3 if shared == "true" else 2  # with those of zeros, before READY
    assert call.arrays["RUNS"].tolist() == [[runs, runs]] * 3
    served.backend.instance_finalize(second)
    assert served(infer({"X": np.ones((1, 2), np.float32)}))[0].arrays["Y"].tolist() == [[2, 2]]
    served.close()
    lease.release()


def test_packaged_backends_have_pinned_requirements() -> None:
    for backend in descriptions():
        if not backend.packaged or backend.name == "doubling":
            continue
        lines = backend.requirements.read_text().split()
        assert (backend.folder / "model.py").is_file() and lines, backend.name
        assert all("==" in line for line in lines), backend.name
