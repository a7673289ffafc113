"""Who uses Ray: the control plane, and its private names the adapter alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.unit.test_imports import ROOT, imports, modules

RAY_USERS = {
    "nereid.server.launcher",
    "nereid.server.main",
    "deployments.builder",
    "deployments.scheduling.dynamic.serve_batch",
    "nereid",
    "nereid.handle",
    "nereid.offline",
}
"""Modules outside of `app/ray_adapter` that use Ray, by its public API."""


def private_ray_names(path: Path) -> Iterator[str]:
    """Find private names and environment variables of Ray in a source file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "ray"]
        elif isinstance(node, ast.Attribute) and node.attr == "_init":
            names = ["._init"]
        elif isinstance(node, ast.keyword) and node.arg == "_internal":
            names = ["._internal"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("RAY_"):
            names = [f"._{node.value}"]
        else:
            continue
        yield from (f"line {node.lineno}: {name}" for name in names if "._" in name)


def test_private_names_of_ray_are_in_the_adapter_alone() -> None:
    adapter = ROOT / "app" / "ray_adapter"
    found = [
        f"{path.relative_to(ROOT)}, {name}"
        for path in modules().values()
        if adapter not in path.parents
        for name in private_ray_names(path)
    ]
    assert not found, f"these belong in app/ray_adapter: {found}"


def test_ray_is_imported_by_the_control_plane_alone() -> None:
    users = {
        name
        for name in modules()
        if not name.startswith("app.ray_adapter") and any(i.split(".")[0] == "ray" for i in imports(name))
    }
    assert users == RAY_USERS
