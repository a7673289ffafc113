"""Models of one process are watched for drift, from the load on that finds a reference."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.core.drift.reference import REFERENCE_FILE, encode_reference
from app.core.drift.status import DriftStatus
from app.core.errors import InferError
from nereid.engine.engine import Engine
from tests.unit.app.drift_fakes import reference
from tests.unit.nereid.engine.repositories import add_ensemble, add_model
from tests.waiting import block_until

ROW = np.array([1.0, 2.0], np.float32)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    add_model(tmp_path, "double")
    add_ensemble(tmp_path, "chain", "double", "double")
    flags = {"model_control_mode": "explicit", "load_model": ["*"]}
    with Engine.open(model_repository=[str(tmp_path)], **flags) as opened:
        yield opened


def status(engine: Engine, model: str) -> DriftStatus:
    return engine.plane.call(engine.service.drift(model))


def rows(engine: Engine, model: str) -> int:
    engine.plane.call(engine.drift.report())
    return status(engine, model).rows


def watched(engine: Engine, model: str) -> bool:
    try:
        return rows(engine, model) >= 0 and bool(engine.drift._tap.known)
    except InferError:
        return False


def test_requests_of_clients_and_steps_of_ensembles_are_counted(engine: Engine, tmp_path: Path) -> None:
    engine.infer("double", {"IN": ROW})
    with pytest.raises(InferError, match="model 'double' is not watched for drift"):
        status(engine, "double")
    for model in ("double", "chain"):
        (tmp_path / model / REFERENCE_FILE).write_bytes(encode_reference(reference()))
        engine.load(model)
    block_until(lambda: watched(engine, "chain"), "the references are used")
    for _ in range(3):
        engine.infer("double", {"IN": ROW})
        engine.infer("chain", {"IN": ROW})
    assert (rows(engine, "double"), rows(engine, "chain")) == (9, 3)
    assert status(engine, "double").reference_rows == 10_000


def test_rules_of_a_load_reject_and_those_of_the_next_do_not(engine: Engine, tmp_path: Path) -> None:
    bad = np.array([1.0, math.nan], np.float32)
    rules = tmp_path / "double" / "drift.yaml"
    rules.write_text("inputs: {IN: {nan: reject}}")
    engine.load("double")
    with pytest.raises(InferError, match=r"input 'IN' for model 'double' has NaN at \[1\]"):
        engine.infer("double", {"IN": bad})
    rules.write_text("inputs: {IN: {nan: deny}}")
    with pytest.raises(InferError, match="Invalid enum value 'deny'"):
        engine.load("double")
    rules.unlink()
    engine.load("double")
    assert math.isnan(engine.infer("double", {"IN": bad})["OUT"][1])
