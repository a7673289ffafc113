"""Models that are loaded again when their files are saved."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.engine.engine import Engine
from nereid.engine.watch import Change, Watch
from tests.unit.nereid.engine.repositories import add_model, source

TRIPLE = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) * 3)]) for r in requests]"


class Bench:
    def __init__(self, repository: Path, engine: Engine) -> None:
        self.repository = repository
        self.engine = engine
        self.told: list[Change] = []
        self.watch = Watch(engine, self.told.append)

    def look(self) -> list[Change]:
        """Look twice: a change is applied when it was found twice as it is."""
        self.told.clear()
        self.watch.look()
        assert not self.told
        self.watch.look()
        return self.told

    def out(self, model: str) -> list[float]:
        found: list[float] = self.engine.infer(model, {"IN": [1.0, 2.0]})["OUT"].tolist()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    add_model(tmp_path, "m", files={"note.txt": "one"})
    flags = {"model_control_mode": "explicit", "load_model": ["*"]}
    with Engine.open(model_repository=[str(tmp_path)], **flags) as engine:
        yield Bench(tmp_path, engine)


def test_a_saved_model_is_loaded_again(bench: Bench) -> None:
    file = bench.repository / "m" / "1" / "model.py"
    file.write_text(source(TRIPLE))
    ((applied, files, served),) = bench.look()
    assert (applied.name, applied.present, applied.error) == ("m", True, "")
    assert files == ["1/model.py"] and served
    assert bench.out("m") == [3, 6]
    assert bench.engine.plane.call(bench.engine.repository.poll()) == []  # the load changes no file
    assert not list(bench.repository.rglob("__pycache__"))


def test_a_mistake_is_told_and_what_was_loaded_is_still_served(bench: Bench) -> None:
    file = bench.repository / "m" / "1" / "model.py"
    file.write_text("import nothing_of_this_name\n")
    ((applied, _, served),) = bench.look()
    assert "No module named 'nothing_of_this_name'" in applied.error and served
    assert bench.out("m") == [2, 4]
    file.write_text(source(TRIPLE))
    assert bench.look()[0].applied.error == ""
    assert bench.out("m") == [3, 6]


def test_models_are_added_and_removed(bench: Bench) -> None:
    folder = add_model(bench.repository, "n")
    ((applied, files, _),) = bench.look()
    assert (applied.name, files) == ("n", ["1/model.py", "config.pbtxt"])
    assert bench.out("n") == [2, 4]
    for path in (folder / "1" / "model.py", folder / "config.pbtxt"):
        path.unlink()
    for path in (folder / "1", folder):
        path.rmdir()
    ((applied, files, served),) = bench.look()
    assert (applied.name, applied.present, served) == ("n", False, False)
    assert files == ["1/model.py", "config.pbtxt"]
