"""Feedback over HTTP and gRPC: the same answers and errors, for clients with the scope."""

import json
from http.client import HTTPConnection
from typing import Any

import pytest

import nereid_client
from app.core.feedback.records import Feedback
from tests.unit.app.ingress.access.guarded import guarded, of
from tests.unit.app.ingress.running_fronts import Fronts, Running

PROTOCOLS = ("http", "grpc")
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "label": 3},
    {"id": "b", "label": ["cat", "dog"], "output": "NAMES"},
    {"row": "ab-1", "score": 0.25},
    {"id": "c", "outputs": {"OUTPUT0": [[1, 2.5], [3, 4]]}},
]


def url(running: Running, protocol: str) -> str:
    return f"{protocol}://{getattr(running, protocol)}"


def post(running: Running, body: bytes, path: str = "simple/feedback", **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection(running.http, timeout=20)
    try:
        connection.request("POST", f"/v2/models/{path}", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_records_arrive_whole(fronts: Fronts, protocol: str) -> None:
    with fronts() as running, nereid_client.connect(url(running, protocol)) as server:
        assert server.model("simple", 2).feedback(RECORDS) == 4
        assert running.service.given == ("simple", "2", tuple(Feedback(**each) for each in RECORDS))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_asyncio_clients_give_feedback_too(fronts: Fronts, protocol: str) -> None:
    with fronts() as running:
        async with nereid_client.connect_async(url(running, protocol)) as server:
            assert await server.model("simple").feedback(iter(RECORDS)) == 4
            figures = await server.model("simple").feedback_figures()
    assert figures["again"] == 3 and figures["received"] == 105
    first, second = figures["versions"]
    assert (first["version"], first["scored"], first["score"], first["accuracy"]) == ("1", 100, 0.9, True)
    assert 0.82 < first["low"] < 0.83 and 0.94 < first["high"] < 0.95
    assert (second["score"], second["accuracy"]) == (0.45, False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_records_are_sent_in_several_requests(fronts: Fronts, protocol: str) -> None:
    with fronts() as running, nereid_client.connect(url(running, protocol)) as server:
        assert server.model("simple").feedback({"id": str(n), "score": 1} for n in range(2500)) == 2500
        assert len(running.service.given[2]) == 500


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"label": 1}, "it needs either the 'id' of a request or the 'row' of a tape"),
        ({"id": "a", "row": "b-1", "label": 1}, "it needs either the 'id' of a request"),
        ({"id": "a"}, "it needs one of 'label', 'outputs' and 'score'"),
        ({"id": "a", "label": 1, "score": 1}, "it needs one of 'label', 'outputs' and 'score'"),
        ({"id": "a", "score": 1.5}, "Expected `float` <= 1.0 - at `$.score`"),
        ({"id": "a", "outputs": {}}, "'outputs' has outputs by name"),
        ({"id": "a", "label": {"x": 1}}, "a label or value is a number, a text, or a list of them"),
        ({"id": "a" * 1025, "label": 1}, "Expected `str` of length <= 1024 - at `$.id`"),
        ({"id": "a", "label": "x" * 70_000}, "are more than the 65536 of a record"),
    ],
)
def test_a_wrong_record_is_refused_with_its_place(
    fronts: Fronts, protocol: str, record: dict[str, Any], text: str
) -> None:
    with fronts() as running, nereid_client.connect(url(running, protocol)) as server:
        with pytest.raises(nereid_client.ServerError) as refused:
            server.model("simple").feedback([{"id": "a", "label": 1}, record])
        assert not hasattr(running.service, "given")
    assert refused.value.code == "INVALID_ARGUMENT"
    assert refused.value.message.startswith("invalid feedback: feedback[1]: ")
    assert text in refused.value.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "invalid feedback: give {"),
        (b'{"feedback": {}}', "invalid feedback: 'feedback' is no list of records"),
        (b'{"feedback": 5}', "invalid feedback: 'feedback' is no list of records"),
        (b'{"feedback": []}', "invalid feedback: 'feedback' is no list of records"),
        (b'{"feedback": [1], "output": 3}', "invalid feedback: unknown field 'output' beside 'feedback'"),
        (b'{"feedback": [1]}', "invalid feedback: feedback[0]: Expected `object`, got `int`"),
        (b'{"id": "a", "lable": 1}', "invalid feedback: feedback: Object contains unknown field `lable`"),
        (b'{"id": "a", "score": true}', "invalid feedback: feedback: Expected `float | null`, got `bool`"),
    ],
)
def test_a_wrong_body_is_refused(fronts: Fronts, body: bytes, text: str) -> None:
    with fronts() as running:
        status, answer = post(running, body)
    assert status == 400
    assert answer["error"].startswith(text)


def test_hostile_bodies_are_bounded(fronts: Fronts) -> None:
    deep = b'{"id": "a", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    many = b'{"feedback": [' + b",".join([b'{"id":"a","score":1}'] * 10_001) + b"]}"
    with fronts() as running:
        assert post(running, deep)[0] in (400, 500)
        status, answer = post(running, many)
        assert post(running, b'{"id": "a", "score": 1}') == (200, {"model_name": "simple", "accepted": 1})
    assert (status, answer["error"]) == (
        400,
        "invalid feedback: 10001 records are more than the 10000 of one request; send several requests",
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_feedback_needs_its_scope(fronts: Fronts, protocol: str) -> None:
    with guarded(fronts) as (running, _):
        for secret, code in (
            ("", "UNAUTHENTICATED"),
            ("infer", "PERMISSION_DENIED"),
            ("manage", "PERMISSION_DENIED"),
            ("feedback", ""),
        ):
            with nereid_client.connect(
                url(running, protocol), headers=of(secret) if secret else {}
            ) as server:
                if code:
                    with pytest.raises(nereid_client.ServerError) as refused:
                        server.model("simple").feedback(RECORDS)
                    assert refused.value.code == code
                else:
                    assert server.model("simple").feedback(RECORDS) == 4
