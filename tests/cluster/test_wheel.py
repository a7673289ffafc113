"""The wheel in an environment of its own, beside a user's packages that have the names of the server's."""

import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.installed.compilers import compiler
from tests.cluster.test_composition import cluster_address
from tests.server import ROOT, Server
from tests.unit.test_imports import modules

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

HOSTILE = "raise RuntimeError('a module of the directory in which the server was started was imported')\n"

CALCULATOR = """
import numpy as np
from nereid import InferError, model_handle
from ray import serve


@serve.deployment
class Calculator:
    def __init__(self):
        self._simple = model_handle("simple")

    async def add(self, left, right):
        try:
            outputs = await self._simple.remote({"INPUT0": left, "INPUT1": right}, outputs=["OUTPUT0"])
        except InferError as error:
            return error.code, error.message
        return int(outputs["OUTPUT0"].sum())
"""

LIMITED = 'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }'
"""Starts the arbiter of the node, a process of its own."""

PROGRAM = """
import numpy as np, ray
from app.calculator import Calculator
from ray import serve

ray.init(runtime_env={"working_dir": "."})
calculator = serve.run(Calculator.bind(), name="calculator", route_prefix=None)
ones = np.ones((1, 16), np.int32)
print(calculator.add.remote(ones, ones).result())
print(calculator.add.remote(ones, ones[:, :3]).result())
serve.delete("calculator")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built from a copy: `build/` of this tree may have modules of the past."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    built_here = shutil.ignore_patterns("__pycache__", "*.so")
    for package in ("app", "backends", "client", "cluster", "deployments", "docs", "nereid"):
        shutil.copytree(ROOT / package, source / package, ignore=built_here)
    for file in ("LICENSE", "README.md", "pyproject.toml", "setup.py", "triton_python_backend_utils.py"):
        shutil.copy(ROOT / file, source)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=100)
    (built,) = folder.glob("nereid_server-*.whl")
    return built


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of an environment that has the wheel, and this one's other packages."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "-q", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=100)
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    # By a path alone: where this tree is installed as editable, that is a file of its own in the folder.
    Path(packages, "others.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project."""
    folder = tmp_path_factory.mktemp("project")
    for package in ("app", "backends", "deployments"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("" if package == "app" else HOSTILE)
    (folder / "hpack.py").write_text(HOSTILE)  # a dependency of the server, and not of Ray
    (folder / "app" / "calculator.py").write_text(CALCULATOR)
    (folder / "program.py").write_text(PROGRAM)
    shutil.copytree(ROOT / "model_repository" / "simple", folder / "models" / "simple")
    with (folder / "models" / "simple" / "config.pbtxt").open("a") as config:
        config.write(LIMITED)
    return folder


@pytest.fixture(scope="module")
def server(commands: Path, project: Path) -> Iterator[Server]:
    """The installed command, run in the user's project."""
    arguments = ["--model-repository=models", "--rate-limit=execution_count"]
    server = Server(arguments, project.parent / "server.log", {"PYTHONPATH": ""})
    server.program, server.directory = [str(commands / "nereid")], project
    yield server.start()
    server.stop()


def test_wheel_has_every_module_and_no_other_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    product = {path.relative_to(ROOT) for path in modules().values()}
    expected = {str(path if path.parts[0] == "nereid" else Path("nereid/_server", path)) for path in product}
    assert expected <= names
    assert "nereid/py.typed" in names
    for compiled in ("app/native/extension", "app/ray_adapter/local/rare_checks"):
        name = f"nereid/_server/{compiled}{sysconfig.get_config_var('EXT_SUFFIX')}"
        assert (name in names) == (compiler("cc") is not None)
    information = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    top = {name.split("/")[0] for name in names}
    assert top == {"nereid", "triton_python_backend_utils.py", information}


def test_public_package_needs_no_module_of_the_server(commands: Path, project: Path) -> None:
    program = "import nereid, sys; print(sorted({'app', 'backends', 'deployments', 'ray'} & {*sys.modules}))"
    done = subprocess.run(
        [str(commands / "python"), "-c", program],
        cwd=project,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n", done.stderr


def test_installed_commands_run(commands: Path, project: Path) -> None:
    done = subprocess.run(
        [str(commands / "nereid"), "token", "list", "--file=absent"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, "absent: No such file or directory\n")


def test_installed_files_are_written(commands: Path, tmp_path: Path) -> None:
    wanted = {"prometheus": "nereid.rules.yml", "docs": "operate/nodes.md", "systemd": "nereid.service"}
    for what, name in wanted.items():
        run = [str(commands / "nereid"), "files", what, str(tmp_path / what)]
        environment = {**os.environ, "PYTHONPATH": ""}
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        folder = "docs" if what == "docs" else f"cluster/{what}"
        assert (tmp_path / what / name).read_bytes() == (ROOT / folder / name).read_bytes()


def test_installed_server_answers_beside_packages_of_its_names(server: Server) -> None:
    body = (
        b'{"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [%s]},'
        b' {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [%s]}]}'
    ) % ((b"1," * 16)[:-1], (b"2," * 16)[:-1])
    with urllib.request.urlopen(f"http://{server.http_url}/v2/models/simple/infer", body) as response:
        assert b'"data":[3,3,' in response.read()


def test_installed_command_measures_a_model(server: Server, commands: Path, project: Path) -> None:
    done = subprocess.run(
        [
            str(commands / "nereid"),
            "perf",
            "-m",
            "simple",
            "-u",
            server.http_url,
            "--rate=20",
            "--duration=0.5",
        ],
        cwd=project,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "20/s" in done.stdout, done.stderr


def test_application_with_an_app_package_calls_models(server: Server, commands: Path, project: Path) -> None:
    env = {"RAY_ADDRESS": cluster_address(server), "RAY_AUTH_MODE": "token", "PYTHONPATH": ""}
    env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the cluster is on 127.0.0.1
    done = subprocess.run(
        [str(commands / "python"), "program.py"],
        cwd=project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    added, refused = done.stdout.splitlines()[-2:]
    assert added == "32"
    assert refused.startswith("('INVALID_ARG', ")


def test_installed_server_drains_at_sigterm(server: Server) -> None:
    assert server.stop() == 0
