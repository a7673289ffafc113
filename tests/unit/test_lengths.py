"""Files, functions, folders and subjects of commits are short, and tests lie where CONTRIBUTING.md says."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LINES, FUNCTION_LINES, FILES, SUBJECT = 400, 40, 15, 75
PRODUCT = ("app", "backends", "client/nereid_client", "deployments", "nereid")
FOLDERS = ("app", "backends", "client", "deployments", "nereid", "benchmarks", "tests")
BESIDE = {"benchmarks", "cluster", "model_repository", "release"}
"""Folders beside the product's that have unit tests."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short(folder: str) -> None:
    paths = [path for kind in ("*.py", "*.c", "*.cpp", "*.h") for path in (ROOT / folder).rglob(kind)]
    lengths = {path: len(path.read_text().splitlines()) for path in paths}
    assert lengths
    assert {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines >= LINES} == {}


@pytest.mark.parametrize("folder", [*PRODUCT, "benchmarks"])
def test_functions_are_short(folder: str) -> None:
    functions = [
        (f"{path.relative_to(ROOT)}: {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert functions
    assert {name: lines for name, lines in functions if lines > FUNCTION_LINES} == {}


def test_folders_of_the_product_hold_few_files() -> None:
    modules = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    numbers = Counter(path.parent for path in modules if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)) for folder, files in numbers.items() if files > FILES} == set()


def test_unit_tests_lie_in_the_folder_that_mirrors_the_one_they_test() -> None:
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit).parts for path in unit.rglob("test_*.py")} - {()}
    places = {"client": ("client", "nereid_client")}
    missing = [
        parts for parts in folders if not ROOT.joinpath(*places.get(parts[0], parts[:1]), *parts[1:]).is_dir()
    ]
    assert folders and missing == []
    assert {parts[0] for parts in folders} == {folder.partition("/")[0] for folder in PRODUCT} | BESIDE


def test_commits_that_main_does_not_have_say_in_a_short_subject_what_changes() -> None:
    command = ["git", "log", "--format=%s", "HEAD", "--not", "main", "--"]
    commits = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if commits.returncode:
        pytest.skip("no checkout with a branch main")
    assert [subject for subject in commits.stdout.splitlines() if len(subject) > SUBJECT] == []
