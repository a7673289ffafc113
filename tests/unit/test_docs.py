"""The pages for developers: what they name exists, and their examples run."""

import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import numpy as np
import pytest

from backends.base import Backend, Model
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from nereid.testing import InferError, load_model
from tests.server import ROOT
from tests.unit.backend_harness import Served, config, infer
from tests.unit.test_imports import modules

TOP = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "client/README.md",
    "cluster/README.md",
    "benchmarks/README.md",
)
PAGES = (*TOP, *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")))
TREES = "app|backends|client|deployments|nereid|tests|benchmarks|examples|docs|model_repository"
PATH = re.compile(rf"(?<![\w/.:-])(?:{TREES})/[\w./*-]*\w\*?/?")
EXAMPLES = {"y.py", "utils.py", "setup.py"}
"""Names that stand for any file, or for none."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def named_paths(page: str) -> Iterator[Path]:
    """Every path that a page names: those from the top of the tree, and those that it links to."""
    text = (ROOT / page).read_text()
    for match in PATH.finditer(text):
        yield ROOT / match[0]
    for link in LINK.findall(text):
        yield (ROOT / page).parent / link


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    missing = {str(path) for path in named_paths(page) if not glob(str(path))}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES)
def test_files_named_alone_exist(page: str) -> None:
    """Files that a page names without their folder, which it has named before."""
    known = {path.name for tree in TREES.split("|") for path in (ROOT / tree).rglob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / page).read_text()))
    assert named - known - EXAMPLES == set()


@pytest.mark.parametrize("page", PAGES)
def test_modules_exist(page: str) -> None:
    """Modules that a page tells to run or to import."""
    text = (ROOT / page).read_text()
    for module in re.findall(r"(?:-m|from) ((?:app|nereid|nereid_client|benchmarks|tests)\b[\w.]*)", text):
        top = ROOT / "client" if module.startswith("nereid_client") else ROOT
        path = top.joinpath(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), module


def test_table_of_folders_is_complete() -> None:
    page = (ROOT / "docs/develop/structure.md").read_text()
    text = page.partition("## Folders")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)
    assert rows == sorted({str(path.parent.relative_to(ROOT)) for path in modules().values()}, key=by_tree)


def test_index_of_pages_is_complete() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/*/**/*.md")}
    assert {page for page in pages if f"({page})" not in text} == set()


@pytest.mark.parametrize("page", PAGES)
def test_configurations_can_be_read(page: str) -> None:
    for block in code_blocks(page, "protobuf"):
        config(block)


@pytest.mark.parametrize("page", PAGES)
def test_anchors_exist(page: str) -> None:
    """Headings that a page links to, on itself or another page."""
    for place, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", (ROOT / page).read_text()):
        linked = (ROOT / page).parent / place if place else ROOT / page
        if linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{place}#{anchor}"


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def by_tree(folder: str) -> tuple[bool, str]:
    """The public package first, then alphabetically."""
    return folder != "nereid", folder


def code_blocks(page: str, language: str) -> list[str]:
    """The blocks of a language in a page."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_example_backend_executes_a_batch(tmp_path: Path) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "backend.py").write_text(code_blocks("docs/develop/backends.md", "python")[0])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "factor.txt").write_text("2.5")
    backend = find_backend(BackendPlace("scale", tmp_path))
    model = Model(config('name: "m" ' + code_blocks("docs/develop/backends.md", "protobuf")[0]), 1, tmp_path)
    backend.auto_complete(model)
    served = Served(backend, model)
    calls = served(*(infer({"INPUT": np.array([[value]], np.float32)}) for value in (1, 2)))
    assert [call.arrays["OUTPUT"].tolist() for call in calls] == [[[2.5]], [[5.0]]]
    served.close()


def test_example_python_model_doubles(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(code_blocks("docs/models/python.md", "python")[0])
    (tmp_path / "config.pbtxt").write_text(code_blocks("docs/models/python.md", "protobuf")[0])
    with load_model(tmp_path) as model:
        assert model(IN=[[1.0, 2.0]])["OUT"].tolist() == [[2.0, 4.0]]
        with pytest.raises(InferError, match="must not be negative"):
            model(IN=[[-1.0]])


def test_table_of_functions_is_that_of_the_class() -> None:
    text = (ROOT / "docs/develop/backends.md").read_text()
    rows = re.findall(r"^\| `(\w+)\(([\w, ]*)\)` \| TRITONBACKEND", text, re.MULTILINE)
    assert len(rows) == 7
    for name, parameters in rows:
        code = getattr(Backend, name).__code__
        assert list(code.co_varnames[1 : code.co_argcount]) == [p for p in parameters.split(", ") if p]


def test_speed_in_the_readme_is_that_of_the_comparison() -> None:
    """The README tells the ends of the range of ratios beside C++ backends, whose figures stand there."""
    page = (ROOT / "docs/use/comparison.md").read_text()
    rows = page.partition("| tritonserver 2.51, C++ backends")[2].partition("Python backend")[0].splitlines()
    ratios = [float(each) for row in rows[:-1] for each in re.findall(r"\d+\.\d+", row.split("|")[-3])]
    told = re.search(r"^\| requests a second beside.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert told is not None
    figures = [float(number) for number in re.findall(r"\d\.\d+", told[0])]
    assert (min(figures), max(figures)) == (round(min(ratios), 1), round(max(ratios), 1))
