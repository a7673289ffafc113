"""The client's own distribution, without the server's."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.server import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built from a copy: building leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(ROOT / "client", folder / "client", ignore=shutil.ignore_patterns("__pycache__", "build"))
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "client")]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, timeout=100)
    (built,) = folder.glob("nereid_client-*.whl")
    return built


def test_wheel_has_every_module_and_no_other(wheel: Path) -> None:
    installed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    client = ROOT / "client"
    product = {str(path.relative_to(client)) for path in client.rglob("nereid_client/**/*.py")}
    assert installed == product | {"nereid_client/py.typed"}


def test_wheel_works_without_the_server(wheel: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import nereid_client
from nereid_client.text import pool
from nereid_client.vision import iou
unwanted = {{"app", "nereid", "aiohttp", "PIL", "tokenizers", "torch"}}
print(iou.__module__, sorted(unwanted & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "nereid_client.vision.boxes []\n", done.stderr


@pytest.mark.parametrize("name", ["perf", "analyze"])
def test_tools_come_with_the_client(wheel: Path, name: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
sys.argv = ["nereid-client", {name!r}, "--help"]
from nereid_client.tools.command import main
try:
    main()
finally:
    assert not {{"app", "nereid", "deployments", "backends"}} & {{*sys.modules}}
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"usage: nereid {name}"), done.stderr
