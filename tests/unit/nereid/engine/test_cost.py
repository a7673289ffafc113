"""The account of one process: what its models consume, whose requests they were."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.access.grants import Grant, Outcomes
from app.access.tokens import make_token
from app.core.cost.ledger import read_hours
from app.ingress.access.caller import GRANT
from nereid.engine.engine import Engine
from tests.unit.nereid.engine.repositories import add_ensemble, add_model

ROW = np.array([1.0, 2.0], np.float32)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    add_model(tmp_path / "models", "double")
    add_ensemble(tmp_path / "models", "chain", "double", "double")
    places = {"auth_tokens_file": str(tokens), "cost_directory": str(tmp_path / "cost")}
    with Engine.open(model_repository=[str(tmp_path / "models")], **places) as opened:
        yield opened


def infer(engine: Engine, model: str, client: str) -> None:
    """Make a request as a client with a token."""
    grant = Grant(make_token("secret", name=client, scope=("infer",)), Outcomes())
    token = GRANT.set(grant)
    try:
        engine.infer(model, {"IN": ROW})
    finally:
        GRANT.reset(token)


def test_requests_and_steps_of_ensembles_are_their_clients(engine: Engine, tmp_path: Path) -> None:
    for _ in range(3):
        infer(engine, "double", "a")
        infer(engine, "chain", "b")
    assert engine.cost is not None
    engine.plane.call(engine.cost.report())
    engine.close()
    rows = [row for hour in read_hours([tmp_path / "cost"]) for row in hour.rows]
    counted = {(row.model, row.token): row.requests for row in rows if row.kind == "usage" and row.requests}
    assert counted == {("double", "a"): 3, ("double", "b"): 6, ("chain", "b"): 3}
    measured = sum(row.cpu_seconds for row in rows if row.kind == "measured")
    others = sum(row.cpu_seconds for row in rows if row.kind != "measured")
    assert others == pytest.approx(measured)
