"""Headers that become request parameters."""

from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from app.protocol.forwarding import HeaderForwarder


def forwarded(pattern: str, *headers: tuple[str, str], parameters: Any = None) -> Any:
    request = InferRequest("m", "", (), parameters=parameters or {})
    return HeaderForwarder(pattern).forward(request, headers).parameters


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("my_header.*", "my_header_1", True),
        ("my_header", "not-my_header-1", True),
        ("my_header", "MY_Header", True),
        ("^my_header$", "my_header_1", False),
        ("(?-i)my_header", "my_header", True),
        ("(?-i)my_header", "My_header", False),
        ("(?i)my_header", "My_header", True),
        ("a|b", "xbx", True),
        (".", "x" * 256, True),
        (".", "x" * 257, False),
    ],
)
def test_pattern_matches_within_a_name(pattern: str, name: str, matches: bool) -> None:
    assert forwarded(pattern, (name, "1")) == ({name: "1"} if matches else {})


def test_headers_replace_parameters_of_the_same_name() -> None:
    given = {"a": 1, "b": True}
    assert forwarded("x|^b$", ("X-1", "v"), ("b", "w"), ("c", "z"), parameters=given) == {
        "a": 1,
        "b": "w",
        "X-1": "v",
    }
    assert given == {"a": 1, "b": True}


def test_request_without_matches_is_unchanged() -> None:
    request = InferRequest("m", "", ())
    assert HeaderForwarder("x").forward(request, [("a", "1")]) is request


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_x",
        "Priority",
    ],
)
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(InferError) as refused:
        forwarded(".*", ("a", "1"), (name, "1"))
    assert refused.value.code is ErrorCode.INVALID_ARG
    assert refused.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    assert forwarded("^a$", ("a", "1"), (name, "1")) == {"a": "1"}


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'\[' is not a regular expression: unterminated character set"):
        HeaderForwarder("[")
