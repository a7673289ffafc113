"""Feedback on answers of a server that records: joined with the tape, in the API and the metrics."""

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

import nereid_client
from tests.server import free_port
from tests.unit.app.tape.bench import ROW, Bench
from tests.unit.nereid.engine.repositories import add_model
from tests.waiting import block_until

METRICS = free_port()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    repository, directory = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("tape")
    add_model(repository, "double")
    with closing(Bench(repository, directory, allow_metrics=True, metrics_port=METRICS)) as made:
        yield made


def test_feedback_is_joined_with_what_was_answered(bench: Bench) -> None:
    """Over both protocols, whatever the requests came by."""
    for number in range(10):
        bench.over("http" if number % 2 else "grpc", "double", ROW + number, request_id=f"r{number}")
    right: list[dict[str, Any]] = [
        {"id": f"r{number}", "outputs": {"OUT": [2 * float(value + number) for value in ROW]}}
        for number in range(8)
    ]
    wrong = {"id": "r8", "outputs": {"OUT": [0.0, 0.0]}}
    for received, url in ((9, f"http://127.0.0.1:{bench.port}"), (18, f"grpc://127.0.0.1:{bench.grpc_port}")):
        found = _joined(url, [*right, wrong], received)
    (version,) = found["versions"]
    assert (version["version"], version["scored"], version["score"], version["accuracy"]) == (
        "1",
        9,
        pytest.approx(8 / 9),
        True,
    )
    assert (found["received"], found["again"]) == (18, 9)
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert 'nereid_feedback_records{model="double",outcome="again"} 9' in lines
    low = 'nereid_feedback_score{bound="low",model="double",version="1"} '
    assert any(line.startswith(low) for line in lines)


def _joined(url: str, records: list[dict[str, Any]], received: int) -> Mapping[str, Any]:
    """Give feedback; return the figures when it was joined, with so many records in all."""
    with nereid_client.connect(url) as server:
        model = server.model("double")
        assert model.feedback(records) == len(records)

        def joined() -> bool:
            figures = model.feedback_figures()
            return bool(figures["received"] == received and not figures["waiting"])

        block_until(joined, "feedback is not joined")
        return model.feedback_figures()


def test_an_unknown_model_is_refused(bench: Bench) -> None:
    with (
        nereid_client.connect(f"http://127.0.0.1:{bench.port}") as server,
        pytest.raises(nereid_client.ServerError, match="unknown model: 'none' is not found") as refused,
    ):
        server.model("none").feedback([{"id": "a", "score": 1}])
    assert refused.value.code == "NOT_FOUND"
