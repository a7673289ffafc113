"""Paths are opened as they are given: resolved, one through `/proc/PID/root` means another place."""

import re

from tests.unit.test_imports import ROOT, TREES

RESOLVES = re.compile(r"\brealpath\(|\.resolve\(\)|\breadlink\(")

ALLOWED = {
    "app/access/token_file.py": "writes a link's target, and not over the link",
    "nereid/commands/new/starts.py": "the name of a folder, which is copied",
    "app/core/installed/installation.py": "the program's own directory",
    "app/core/installed/private_packages.py": "the program's own directory",
    "app/ingress/clouds/models.py": "directories that a client names",
    "nereid/migrate": "sources of another server, which are copied",
    "backends/rtsp/policy.py": "files that a client names",
    "deployments/model_store/layout.py": "`is_inside`, of label files, which Triton refuses so",
    "nereid/internals.py": "the program's own directory",
}


def test_no_path_of_a_repository_is_resolved() -> None:
    found = {
        str(path.relative_to(ROOT))
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
        if RESOLVES.search(path.read_text())
    }
    unexpected = {path for path in found if not path.startswith(tuple(ALLOWED))}
    assert not unexpected, f"open these paths as they are given, or say in ALLOWED why not: {unexpected}"
    assert all(any(path.startswith(allowed) for path in found) for allowed in ALLOWED)
