"""Messages that switch the tape."""

from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tape.switch import TapeSetting
from app.protocol.observability.tape_settings import decode_http, encode_http


def test_a_setting_is_json() -> None:
    assert encode_http(TapeSetting(False)) == b'{"recording":false,"rate":null}'


@pytest.mark.parametrize(
    ("document", "change"),
    [
        ({}, {}),
        ({"recording": False}, {"recording": False}),
        ({"rate": 1}, {"rate": 1.0}),
        ({"rate": 0, "recording": True}, {"rate": 0.0, "recording": True}),
        ({"rate": None}, {"rate": None}),
    ],
)
def test_changes_are_read(document: Any, change: Any) -> None:
    assert decode_http(document) == change


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "settings are a JSON object"),
        ({"rates": 1}, "unknown tape setting 'rates'; did you mean 'rate'"),
        ({"directory": "/tmp"}, "unknown tape setting 'directory'"),
        ({"recording": 1}, "'recording' is to be true, false or null"),
        ({"rate": 1.5}, "'rate' is to be a number from 0 to 1"),
        ({"rate": -1}, "'rate' is"),
        ({"rate": float("nan")}, "'rate' is"),
        ({"rate": True}, "'rate' is"),
        ({"rate": "0.5"}, "'rate' is"),
    ],
)
def test_what_makes_no_sense_is_refused(document: Any, told: str) -> None:
    with pytest.raises(InferError, match=told) as refused:
        decode_http(document)
    assert refused.value.code is ErrorCode.INVALID_ARG
