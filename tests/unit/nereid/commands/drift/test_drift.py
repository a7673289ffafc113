"""`nereid drift`: references of files and tapes, the table and the page."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.core.drift.counts import RowCounts
from app.core.drift.extraction import Rows
from app.core.drift.reference import REFERENCE_FILE, VersionReference, decode_reference
from app.core.drift.spec import DriftSpec
from app.core.drift.status import DriftStatus
from deployments.drift.version import VersionDrift
from nereid.commands.drift import reference as reference_command
from nereid.commands.drift.command import main
from nereid.commands.drift.page import page
from nereid.commands.drift.text import screen
from nereid_client.tape.rows import SIZE, TapeResponse, TapeTensor
from tests.unit.app.drift_fakes import reference
from tests.unit.client.tape.made import row, write

CONFIG = """name: "wine"
backend: "fil"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
input { name: "colour" data_type: TYPE_STRING dims: [ 1 ] optional: true }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
"""
RNG = np.random.default_rng(6)
X = RNG.normal(size=(1500, 3)).astype(np.float32)
Y = RNG.normal(size=(1500, 2)).astype(np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    model = tmp_path / "models" / "wine"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "labels.txt").write_text("a\nb\n")
    (model / "1" / "model.json").write_text("{}")
    return tmp_path / "models"


def written(repository: Path, *arguments: str) -> VersionReference:
    """Make a reference; return that of version 1."""
    assert main(["reference", "wine", "--repository", str(repository), *arguments]) == 0
    path = repository / "wine" / REFERENCE_FILE
    assert path.stat().st_mode & 0o777 == 0o644
    return decode_reference(path.read_bytes()).of(1)


def kinds(found: VersionReference) -> dict[str, tuple[str, int]]:
    return {tensor.name: (tensor.kind, len(tensor.features)) for tensor in found.tensors}


def npz(path: Path) -> Path:
    np.savez(path, x=X, y=Y)
    return path


def columns(path: Path) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "c", "colour", "y"])
        rows.writerows([*x, ["red", "blue"][number % 2], ""] for number, x in enumerate(X.tolist()))
    return path


def lines(path: Path) -> Path:
    documents = ({"in.x": x, "out.y": y} for x, y in zip(X.tolist(), Y.tolist(), strict=True))
    path.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
    return path


def tensor(name: str, rows: Rows) -> TapeTensor:
    return TapeTensor(name, "FP32", rows.shape, rows.tobytes(), rows.nbytes)


def tape(path: Path) -> Path:
    rows = []
    for number in range(0, 1500, 10):
        inputs = tensor("x", X[number : number + 10]), TapeTensor("colour", "BYTES", (10, 1), b"", 20, SIZE)
        answer = TapeResponse(1000, (tensor("y", Y[number : number + 10]),), final=True)
        made = row(number + 1, model="wine", version="1", inputs=inputs, responses=(answer,), reason="rate")
        rows.append(made)
    failed = msgspec.structs.replace(rows[0], number=5000, reason="error")
    write(path, [*rows, failed, msgspec.structs.replace(failed, model="other")])
    return path


@pytest.mark.parametrize(
    ("make", "name", "arguments", "expected"),
    [
        (npz, "rows.npz", (), {"x": ("numbers", 3), "y": ("classes", 3)}),
        (lines, "rows.jsonl", (), {"x": ("numbers", 3), "y": ("classes", 3)}),
        (columns, "rows.csv", ("--map", "x=a,b,c"), {"x": ("numbers", 3), "colour": ("labels", 1)}),
        (tape, "t.tape", (), {"x": ("numbers", 3), "y": ("classes", 3)}),
    ],
)
def test_a_reference_is_made_of(
    repository: Path,
    tmp_path: Path,
    make: Callable[[Path], Path],
    name: str,
    arguments: tuple[str, ...],
    expected: dict[str, tuple[str, int]],
) -> None:
    found = written(repository, "--from", str(make(tmp_path / name)), *arguments)
    assert kinds(found) == expected
    assert found.inputs.rows == 1500
    assert found.features[0].mean == pytest.approx(float(X[:, 0].mean()), abs=1e-5)


def test_the_rows_of_the_next_day_are_waited_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = list[float]()
    monkeypatch.setattr(reference_command, "pause", waited.append)
    path = str(tape(tmp_path / "t.tape"))  # whose rows are of long ago
    assert main(["reference", "wine", "--repository", str(repository), "--from", path, "--next", "24h"]) == 1
    assert waited == [86_400] and "has 0 rows" in capsys.readouterr().err


def test_outputs_of_a_new_version_leave_the_inputs_as_they_are(repository: Path, tmp_path: Path) -> None:
    before = written(repository, "--from", str(npz(tmp_path / "rows.npz")))
    (repository / "wine" / "2").mkdir()
    np.savez(tmp_path / "new.npz", x=X + 5, y=Y)
    written(repository, "--from", str(tmp_path / "new.npz"), "--outputs", "--version", "2")
    found = decode_reference((repository / "wine" / REFERENCE_FILE).read_bytes())
    assert found.inputs == before.inputs and sorted(found.outputs) == ["1", "2"]
    assert found.outputs["1"].content and found.outputs["2"].content != found.outputs["1"].content


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("missing.npz", "No such file"),
        ("few.npz", "has 10 rows of tensors of model 'wine' (x, colour, y), and a reference needs 1000"),
        ("other.npz", "has 0 rows"),
    ],
)
def test_what_is_no_reference_is_refused_with_the_reason(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    np.savez(tmp_path / "few.npz", x=X[:10])
    np.savez(tmp_path / "other.npz", z=X)
    arguments = ["reference", "wine", "--repository", str(repository), "--from", str(tmp_path / source)]
    assert main(arguments) == 1
    assert why in capsys.readouterr().err
    assert not (repository / "wine" / REFERENCE_FILE).exists()


def test_an_unknown_model_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference", "beer", "--repository", str(repository), "--from", "x.npz"]) == 1
    assert f"model 'beer' is not in {repository}" in capsys.readouterr().err


def status(shift: float = 1.0) -> DriftStatus:
    """Return that of 1000 rows, one feature of which is shifted."""
    found = reference("x", 2, "y").of(1)
    drift = VersionDrift("d", found, DriftSpec())
    cells = [list(feature.counts) for feature in found.features]
    cells[1] = [0, 7, 0, *[0] * 14, 5000, 4000, 0, 993]
    drift.add(RowCounts(10_000, cells, {"x": 3}, {}, 5_000_000_000, 10_000))
    drift.test(100.0)
    return drift.status("wine", 1)


def test_a_table_names_what_has_changed() -> None:
    text = "\n".join(screen(status()))
    assert "wine version 1: CHANGED since 1970-01-01 00:01:40 UTC in x[1]" in text
    assert "10,000 recent rows of 10,000 counted, beside 10,000 of rows" in text
    assert "mean confidence 50.0%" in text
    assert "x: 1,000 values of 10,000 rows are far outside" in text
    assert text.index("! x[1]") < text.index("  x[0]")


def test_a_page_has_both_distributions_of_each_feature_and_no_script() -> None:
    found = status()
    name = "<script>x"
    features = (
        msgspec.structs.replace(
            found.features[0], feature=msgspec.structs.replace(found.features[0].feature, name=name)
        ),
        *found.features[1:],
    )
    text = page(msgspec.structs.replace(found, features=features))
    assert "<script" not in text and "&lt;script&gt;x" in text
    assert text.count("<svg") == 5 and text.count('class="c0" x=') == text.count('class="c1" x=') > 40
    assert 'class="bad">changed' in text


def test_nothing_is_drawn_of_what_was_not_counted() -> None:
    found = VersionDrift("d", reference("x", 2).of(1), DriftSpec()).status("wine", 1)
    assert "too few requests so far" in "\n".join(screen(found))
    assert page(found).count("<svg") == 2 and not math.isnan(found.features[0].evidence)
