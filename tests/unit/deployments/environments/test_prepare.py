"""Sources of a Python model's environment."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError, internal
from backends.base import Model
from backends.python.backend import PythonBackend
from deployments.environments import prepare as prepare_module
from deployments.environments.prepare import Environment, prepare, unpack
from deployments.spec import Backends
from tests.environments import make
from tests.unit.backend_harness import Served, config, infer
from tests.unit.deployments.environments import conda_archive as conda
from tests.unit.python_models import execute, text, write

ROOM = 1 << 40
PATH = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a model's directory; environments are unpacked and installed beside it."""
    monkeypatch.setattr(prepare_module, "private_root", lambda: tmp_path / "node")
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def prepared(
    folder: Path, declared: str = "", backend: str = "python", common: Path | None = None, **settings: str
) -> Environment:
    configuration = config(f'name: "m" backend: "{backend}" {PATH.format(declared) if declared else ""}')
    model = Model(configuration, 1, folder, settings)
    model.common_file = common
    return prepare(model, ROOM)


def error_of(folder: Path, declared: str = "", **settings: str) -> InferError:
    with pytest.raises(InferError) as caught:
        prepared(folder, declared, "python", None, **settings)
    return caught.value


def test_models_without_an_environment(folder: Path) -> None:
    assert prepared(folder) == Environment()
    (folder / "requirements.txt").write_text("x\n")
    assert prepared(folder, backend="identity") == Environment()


def test_environment_in_a_directory(folder: Path) -> None:
    make(folder / "env")
    expected = folder / "env" / "bin" / "python3"
    assert prepared(folder, "$$TRITON_MODEL_DIRECTORY/env").python == expected
    assert prepared(folder, str(folder / "env")).python == expected


def test_venv_beside_the_model_is_used(folder: Path) -> None:
    make(folder / "venv")
    assert prepared(folder).python == folder / "venv" / "bin" / "python3"
    make(folder / "1" / "venv")
    assert prepared(folder).python == folder / "1" / "venv" / "bin" / "python3"


def test_models_of_a_python_based_backend_share_its_environment(folder: Path, tmp_path: Path) -> None:
    common = tmp_path / "backends" / "b" / "model.py"
    common.parent.mkdir(parents=True)
    assert prepared(folder, backend="b", common=common) == Environment()
    (common.parent / "requirements.txt").write_text("x\n")
    assert prepared(folder, backend="b", common=common).unused == common.parent / "requirements.txt"
    make(common.parent / "venv")
    assert prepared(folder, backend="b", common=common).python == common.parent / "venv" / "bin" / "python3"
    make(folder / "venv")
    assert prepared(folder, backend="b", common=common).python == folder / "venv" / "bin" / "python3"
    make(folder / "env")
    declared = prepared(folder, "$$TRITON_MODEL_DIRECTORY/env", "b", common)
    assert declared.python == folder / "env" / "bin" / "python3"


def test_bad_paths_are_refused(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "env")
    (folder / "link").symlink_to(tmp_path / "env")
    assert prepared(folder, "$$TRITON_MODEL_DIRECTORY/link").python
    path = "$$TRITON_MODEL_DIRECTORY/../env"
    error = error_of(folder, path)
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == f"EXECUTION_ENV_PATH '{path}' escapes the directory of model 'm'"
    assert error_of(folder, "/no/where").message == "Failed to get the canonical path for /no/where."
    assert error_of(folder, "env").message == "Failed to get the canonical path for env."
    assert "bin/python does not exist" in error_of(folder, str(tmp_path / "m")).message
    (tmp_path / "text").write_text("no archive")
    assert "unable to unpack" in error_of(folder, str(tmp_path / "text")).message


def test_a_look_unpacks_and_installs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(declared: str, **settings: str) -> Environment:
        text = f'name: "m" backend: "python" {PATH.format(declared) if declared else ""}'
        return prepare_module.look(Model(config(text), 1, folder, settings))

    monkeypatch.setattr(prepare_module, "NodeCache", None)
    (folder / "env.tar").write_text("no archive")
    assert found("$$TRITON_MODEL_DIRECTORY/env.tar") == Environment()
    with pytest.raises(InferError, match="Failed to get the canonical path for /no/where"):
        found("/no/where")
    (folder / "requirements.txt").write_text("absent-here==1\n")
    assert found("", requirements="install") == Environment()
    assert "absent-here is not installed" in found("").unlike


def test_archive_is_unpacked_once(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "env"
    make(root)
    for link in [path for path in root.rglob("*") if path.is_symlink()]:
        # conda-pack's archives hold their interpreter; this one has to find the machine's.
        target = link.resolve()
        link.unlink()
        if target.is_file():
            link.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
            link.chmod(0o700)
    (root / "bin" / "again").symlink_to("python3")
    (root / "bin" / "open").touch()
    (root / "bin" / "open").chmod(0o6777)
    with tarfile.open(folder / "env.tar.gz", "w:gz") as archive:
        archive.add(root, ".")
    first = prepared(folder, "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    assert first.python is not None and first.lease is not None
    assert first.python.is_relative_to(tmp_path / "node" / "environments")
    assert (first.python.parent / "again").read_bytes() == first.python.read_bytes()
    assert (first.python.parent / "open").stat().st_mode & 0o7777 == 0o755
    assert subprocess.run([first.python, "-c", "print(7)"], capture_output=True).stdout == b"7\n"
    (first.python.parent / "mark").touch()
    second = prepared(folder, "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    assert second.python == first.python and (first.python.parent / "mark").exists()
    first.release()
    second.release()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


@pytest.mark.parametrize(
    "members",
    [
        [member("../../x")],
        [member("/tmp/x")],
        [member("a/../../x")],
        [member("x", tarfile.SYMTYPE, "/etc")],
        [member("a/x", tarfile.SYMTYPE, "../../y")],
        [member("x", tarfile.LNKTYPE, "../y")],
        [member("x", tarfile.LNKTYPE, "/etc/passwd")],
        [member("x", tarfile.SYMTYPE, "y"), member("x/z")],
        [member("x", tarfile.SYMTYPE, "y"), member("x")],
        [member("x", tarfile.SYMTYPE, "y"), member("z", tarfile.LNKTYPE, "x")],
        [member("x", tarfile.FIFOTYPE)],
        [member("x", tarfile.CHRTYPE)],
    ],
    ids=lambda members: "-".join(f"{each.name}>{each.linkname}" for each in members),
)
def test_archive_members_outside_are_refused(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    path, root = tmp_path / "a.tar", tmp_path / "parent" / "root"
    root.mkdir(parents=True)
    with tarfile.open(path, "w") as archive:
        for each in members:
            archive.addfile(each, io.BytesIO())
    with pytest.raises(InferError, match="is refused: it leads out of the environment") as caught:
        unpack(path, root, ROOM)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert [each for each in root.parent.rglob("*") if each not in (root, root / "x")] == []


def test_too_large_archive_is_refused(tmp_path: Path) -> None:
    large = member("x")
    large.size = 100
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(large, io.BytesIO(bytes(100)))
    with pytest.raises(InferError, match="holds more than 99 bytes"):
        unpack(tmp_path / "a.tar", tmp_path, 99)


def test_requirements_are_not_installed_by_default(folder: Path) -> None:
    (folder / "1" / "requirements.txt").write_text("x\n")
    environment = prepared(folder)
    assert environment.python is None
    missing = internal("ModuleNotFoundError: No module named 'x'")
    assert environment.explain(missing).message == (
        f"{missing.message}\n'{folder}/1/requirements.txt' is not installed by default;"
        " --backend-config=python,requirements=install gives each such model an environment of its own"
    )
    other = internal("ValueError: x")
    assert environment.explain(other) is other
    assert "must be 'install' or 'ignore', got 'yes'" in error_of(folder, requirements="yes").message


def test_failed_installation_reports_its_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def without_pip(command: list[str], **options: Any) -> Any:
        if "venv" in command:  # as Python makes it, but for pip, which takes seconds
            make(Path(command[-1]))
            return real([sys.executable, "-c", ""], **options)
        return real([sys.executable, *command[1:]], **options)

    monkeypatch.setattr(subprocess, "run", without_pip)
    (folder / "requirements.txt").write_text("--no-index\nno-such-package-anywhere\n")
    message = error_of(folder, requirements="install").message
    assert message.startswith(f"installing '{folder}/requirements.txt' of model 'm' failed: ")
    assert "no-such-package-anywhere" in message
    node = folder.parent / "node" / "environments"
    assert [path for path in node.iterdir() if path.is_dir()] == []


def test_installed_environment_depends_on_the_requirements(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[Path] = []

    def install(name: str, requirements: Path, root: Path, final: Path) -> None:
        make(root)
        installed.append(requirements)

    monkeypatch.setattr(prepare_module, "install", install)
    (folder / "requirements.txt").write_text("-c versions.txt\n")
    pythons = []
    for versions in ("a==1\n", "a==1\n", "a==2\n"):
        (folder / "versions.txt").write_text(versions)
        environment = prepared(folder, requirements="install")
        pythons.append(environment.python)
        environment.release()
    assert pythons[0] == pythons[1] != pythons[2] and len(installed) == 2
    (folder / "1" / "requirements.txt").write_text("-c ../versions.txt\n-r ../../x.txt\n")
    error = error_of(folder, requirements="install")
    assert error.code is ErrorCode.INVALID_ARG
    text = f"'{folder}/1/requirements.txt' names '../../x.txt', which is outside of '{folder}'"
    assert error.message == text and len(installed) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_versions_of_numpy_side_by_side(folder: Path) -> None:
    body = "array = np.array([[np.__version__.encode()]], dtype=object)\n"
    source = execute(f'{body}return [pb_utils.InferenceResponse([pb_utils.Tensor("O", array)])]')
    models = []
    for version in ("1.26.4", "2.2.6"):
        directory = write(folder / version, source)
        (directory / "requirements.txt").write_text(f"numpy=={version}\n")
        configuration = config(text("TYPE_STRING"))
        environment = prepare(Model(configuration, 1, directory, {"requirements": "install"}), ROOM)
        served = Served(PythonBackend, configuration, directory, interpreter=environment.python)
        models.append((version, served, environment))
    for version, served, _ in models:
        (call,) = served(infer({"I": [[b"x"]]}))
        assert call.arrays["O"].tolist() == [[version.encode()]]
    for _, served, environment in models:
        served.close()
        environment.release()


def test_settings_of_a_python_based_backend() -> None:
    every = {"": {"a": "all", "b": "all"}, "python": {"b": "python", "c": "python"}, "mine": {"c": "mine"}}
    backends = Backends(config=every)
    assert backends.settings("mine", "python") == {"a": "all", "b": "python", "c": "mine"}
    assert backends.settings("mine") == {"a": "all", "b": "all", "c": "mine"}


def conda_archive(folder: Path, archive: Path) -> None:
    """Make an archive with conda's tools, in an environment that is removed afterwards."""
    tools = folder / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    python = str(tools / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *conda.TOOLS], check=True)
    subprocess.run([python, conda.__file__, folder, archive], check=True)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_archive_of_conda_pack(folder: Path, tmp_path: Path) -> None:
    conda_archive(tmp_path / "made", folder / "env.tar.gz")
    body = """
maps = open("/proc/self/maps").read().split()
library = [name for name in maps if "/libpython" in name] or [sys.prefix]
about = [sys.prefix, np.__file__, np.__version__, os.environ["CONDA_PREFIX"], *set(library)]
array = np.array([[json.dumps(about)]], dtype=object)
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", array)])]
"""
    write(folder, "import os\nimport sys\n" + execute(body))
    declared = PATH.format("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    configuration = config(text("TYPE_STRING", declared))
    environment = prepare(Model(configuration, 1, folder), ROOM)
    served = Served(PythonBackend, configuration, folder, interpreter=environment.python)
    (call,) = served(infer({"I": [[b"x"]]}))
    prefix, file, version, *others = json.loads(call.arrays["O"][0, 0])
    assert version == "2.2.6" and Path(prefix).parent == tmp_path / "node" / "environments"
    assert all(path.startswith(prefix) for path in (file, *others))
    served.close()
    environment.release()
