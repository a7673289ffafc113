"""The direction of imports: each package may import what this table says, and nothing else of ours."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OURS = ("app", "backends", "deployments", "benchmarks", "tests", "model_repository")

MAY_IMPORT = {
    "app.core": ("app.core",),
    "app.protocol": ("app.core", "app.protocol"),
    "app.transport": ("app.core", "app.transport"),
    "app.routing": ("app.core", "app.transport", "app.routing"),
    "app.cache": ("app.core", "app.cache"),
    "app.ensemble": ("app.core", "app.transport", "app.routing", "app.ensemble"),
    "app.ingress": (
        "app.core",
        "app.protocol",
        "app.transport",
        "app.routing",
        "app.ensemble",
        "app.settings.settings",
        "app.ingress",
    ),
    "backends": ("app.core", "backends"),
    "deployments": (
        "app.core",
        "app.transport",
        "app.routing",
        "app.ensemble",
        "app.settings.repositories",
        "app.settings.settings",
        "backends",
        "deployments",
    ),
}
MAY_NOT_IMPORT = {
    "app.core": ("ray", "fastapi"),
    "app.protocol": ("ray", "fastapi", "socket", "asyncio"),
    "app.transport": ("ray", "fastapi", "grpc"),
    "app.routing": ("fastapi", "grpc"),
    "backends": ("ray", "fastapi", "grpc"),
    "deployments": ("fastapi", "grpc"),
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_direction(package: str) -> None:
    files = sorted((ROOT / package.replace(".", "/")).rglob("*.py"))
    assert files
    for path in files:
        for name in imported(path):
            place = f"{path.relative_to(ROOT)} imports {name}"
            if name.split(".")[0] in OURS:
                assert any(is_in(name, allowed) for allowed in MAY_IMPORT[package]), place
            assert not any(is_in(name, banned) for banned in MAY_NOT_IMPORT.get(package, ())), place


def test_a_replica_starts_without_what_few_models_need() -> None:
    """Each costs every load CPU time: calls to other models, and clients of remote storage."""
    unwanted = [
        "deployments.bls.service",
        "app.ensemble",
        "backends.python",
        "deployments.model_store.storage",
        "fsspec",
    ]
    code = f"import sys, deployments.replica.deployment; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr[-2000:]
