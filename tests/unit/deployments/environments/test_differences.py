"""What a requirements.txt asks for, beside what is installed here."""

import logging
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from deployments.environments.differences import differences, unlike
from nereid.engine.engine import Engine
from tests.unit.nereid.engine.repositories import add_model

NUMPY = version("numpy")


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("numpy==1.26.4", [f"numpy {NUMPY} for numpy==1.26.4"]),
        ("NumPy<1", [f"NumPy {NUMPY} for NumPy<1"]),
        (f"numpy=={NUMPY}", []),
        ("numpy", []),
        ("nobody-has-this>=1", ["nobody-has-this is not installed"]),
        ("nobody-has-this; sys_platform == 'win32'", []),
        ("./wheels/mine.whl", []),
        ("https://example.com/mine.whl", []),
    ],
)
def test_each_requirement_is_compared(line: str, texts: list[str]) -> None:
    assert differences([line]) == texts


def test_files_are_read_as_pip_does(tmp_path: Path) -> None:
    """Comments, options, other files; constraints ask for nothing."""
    (tmp_path / "requirements.txt").write_text(
        "# numpy==1\n--index-url https://example.com\n-r more.txt\n-c limits.txt\n"
        f"numpy=={NUMPY} \\\n  --hash=sha256:00  # pinned\n"
    )
    (tmp_path / "more.txt").write_text("absent==1\n")
    (tmp_path / "limits.txt").write_text("numpy==1\nother-absent==1\n")
    text = unlike("m", tmp_path / "requirements.txt", tmp_path)
    assert ": absent is not installed; --backend-config=python,requirements=install gives" in text


def test_few_of_many_are_shown(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("\n".join(f"absent{number}" for number in range(7)))
    text = unlike("m", tmp_path / "requirements.txt", tmp_path)
    assert "absent4 is not installed and 2 more; " in text and "absent5" not in text


@pytest.mark.parametrize(("pinned", "lines"), [("1.26.4", 1), (NUMPY, 0)])
def test_load_warns_of_other_packages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pinned: str, lines: int
) -> None:
    add_model(tmp_path, "m", files={"requirements.txt": f"numpy=={pinned}\n"})
    with caplog.at_level(logging.WARNING), Engine.open(model_repository=[str(tmp_path)]) as engine:
        assert engine.infer("m", {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [2, 2]
    found = [line for line in caplog.messages if "unlike its" in line]
    assert len(found) == lines and all(f"numpy {NUMPY} for numpy==1.26.4" in line for line in found)
