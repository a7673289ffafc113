"""Libraries for tests of C++ backends, compiled once in a session."""

import shutil
import subprocess
from pathlib import Path

import pytest

from app.core.errors import InferError
from backends.cpp.build import built_library, compiler

PROBE = Path(__file__).parent / "probe"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backend directory with `probe`, `caller` and `timing`; beside them `strategy.so`. Compiled as C."""
    directory = tmp_path_factory.mktemp("libraries")
    for name in ("probe", "caller", "timing"):
        (directory / name).mkdir()
        compile_c(f"{name}.c", directory / name / f"libtriton_{name}.so")
    compile_c("strategy.c", directory / "strategy.so")
    built_library()  # here, for the time of a test is limited, and that of a fixture is not
    return directory


def compile_c(source: str, library: Path) -> None:
    """Compile a file of `probe/` into a library."""
    try:
        command = compiler()
    except InferError:
        pytest.skip("no C++ compiler")
    flags = ("-x", "c", "-O1", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-pthread")
    subprocess.run([*command, *flags, PROBE / source, "-o", library], check=True)


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    """A model's directory with a version."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def copy(library: Path, directory: Path, name: str) -> None:
    """Copy a library to where it is looked for."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, directory / name)
