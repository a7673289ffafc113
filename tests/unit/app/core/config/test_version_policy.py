"""Version policies and version strings."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.version_policy import (
    absent_versions,
    latest,
    parse_version,
    require_versions,
    served_versions,
)
from app.core.errors import ErrorCode, InferError


def policy(text: str) -> mc.ModelVersionPolicy:
    return text_format.Parse(text, mc.ModelVersionPolicy())


@pytest.mark.parametrize(
    ("text", "on_disk", "served"),
    [
        ("latest { num_versions: 1 }", [1, 10, 2], [10]),
        ("latest { num_versions: 2 }", [1, 10, 2], [2, 10]),
        ("latest { num_versions: 9 }", [0, 3], [0, 3]),
        ("latest { num_versions: 0 }", [1, 2], []),
        ("latest { num_versions: 1 }", [0], [0]),
        ("all { }", [3, 1, 0], [0, 1, 3]),
        ("specific { versions: [ 3, 1, 7 ] }", [1, 2, 3], [1, 3]),
        ("specific { }", [1], []),
        ("", [2, 1], [1, 2]),
    ],
)
def test_served_versions(text: str, on_disk: list[int], served: list[int]) -> None:
    assert served_versions(policy(text), on_disk) == served


def test_absent_versions() -> None:
    assert absent_versions(policy("specific { versions: [ 3, 1, 7 ] }"), [1]) == [3, 7]
    assert absent_versions(policy("all { }"), [1]) == []


def test_a_model_needs_a_version() -> None:
    assert require_versions("m", [2]) == [2]
    with pytest.raises(InferError) as caught:
        require_versions("m", [])
    assert caught.value.code is ErrorCode.INVALID_ARG
    expected = "at least one version must be available under the version policy of model 'm'"
    assert caught.value.message == expected


def test_latest_is_numeric() -> None:
    assert latest([9, 10, 2]) == 10


@pytest.mark.parametrize(
    ("text", "version"),
    [("", None), ("0", 0), ("1", 1), ("007", 7), (" +3", 3), ("2x", 2), ("9" * 18, int("9" * 18))],
)
def test_parse_version(text: str, version: int | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "-", "one", "9" * 20, "9" * 5000, "１", "\n"])
def test_parse_version_refuses(text: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_version(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be "
        "an integral value > 0"
    )


def test_parse_version_refuses_negative() -> None:
    with pytest.raises(InferError) as caught:
        parse_version("-1")
    text = "invalid model version specified '-1' , version should be an integral value > 0"
    assert caught.value.message == text
