"""Feedback to a server without a tape, and what is wrong in it, over HTTP and gRPC."""

from typing import Any

import pytest

import nereid_client
from tests.contract.conftest import Addresses


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: Addresses) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


def test_without_a_tape_it_is_told_how_to_get_one(url: str) -> None:
    with nereid_client.connect(url) as server:
        for ask in (
            lambda: server.model("simple").feedback([{"id": "a", "score": 1}]),
            lambda: server.model("simple").feedback_figures(),
        ):
            with pytest.raises(nereid_client.ServerError) as refused:
                ask()
            assert (refused.value.code, refused.value.message) == (
                "UNIMPLEMENTED",
                "feedback is joined with recorded requests, and this server records none: start it with "
                "--tape=DIRECTORY",
            )


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"id": "a"}, "it needs one of 'label', 'outputs' and 'score'"),
        ({"label": 3}, "it needs either the 'id' of a request or the 'row' of a tape"),
        ({"id": "a", "score": -1}, "Expected `float` >= 0.0 - at `$.score`"),
    ],
)
def test_a_wrong_record_is_refused(url: str, record: dict[str, Any], text: str) -> None:
    with nereid_client.connect(url) as server, pytest.raises(nereid_client.ServerError) as refused:
        server.model("simple").feedback([record])
    assert refused.value.code == "INVALID_ARGUMENT"
    assert refused.value.message == f"invalid feedback: feedback[0]: {text}"
