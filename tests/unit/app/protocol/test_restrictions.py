"""Restriction options and the check of a header's value."""

from typing import Any

import pytest

from app.protocol.restrictions import GRPC_PREFIX, Restriction, parse_restrictions

HTTP = ("http-restricted-api", "api")


def test_options_are_parsed_by_category() -> None:
    found = parse_restrictions(["inference,trace:Key=a=b:c", "health:k=v"], *HTTP, GRPC_PREFIX)
    assert found == {
        "inference": Restriction("triton-grpc-protocol-Key", "a=b:c"),
        "trace": Restriction("triton-grpc-protocol-Key", "a=b:c"),
        "health": Restriction("triton-grpc-protocol-k", "v"),
    }


@pytest.mark.parametrize("entry", ["", "health", "health:key", "health:=v", "health:key=", ":key=v", "a=b:c"])
def test_malformed_entry_is_refused(entry: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_restrictions([entry], *HTTP)
    assert str(refused.value) == (
        f"--http-restricted-api option format is '<config name>:<setting>=<value>'. Got {entry}"
    )


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["health,heath:k=v"], "unknown restricted api 'heath'"),
        (["health,:k=v"], "unknown restricted api ''"),
        (["health,health:k=v"], "restricted api 'health' can not be specified in multiple config groups"),
        (["trace:k=v", "trace:k=v"], "restricted api 'trace' can not be specified in multiple config groups"),
    ],
)
def test_unknown_and_repeated_categories_are_refused(entries: Any, text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_restrictions(entries, *HTTP)
    assert str(refused.value) == text


def test_value_must_match_completely() -> None:
    restriction = Restriction("key", "välue")
    assert restriction.accepts("välue".encode())
    assert not any(map(restriction.accepts, (None, b"", b"value", "väluex".encode(), "välu".encode())))
