"""Resolution of names and versions, with Triton's texts."""

from typing import Any

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.rollout.split import Split
from app.routing.scale import Scale
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.routing.table_bytes import decode_table, encode_table


def table(*entries: VersionEntry) -> RoutingTable:
    return RoutingTable(7, True, entries)


def entry(name: str, version: int, state: ModelState = ModelState.READY, reason: str = "") -> VersionEntry:
    return VersionEntry(name, version, state, reason, application=f"{name}:{version}")


TABLE = table(
    entry("m", 1),
    entry("m", 10),
    entry("m", 2, ModelState.LOADING),
    entry("gone", 1, ModelState.UNAVAILABLE, "unloaded"),
    VersionEntry("bad", NO_VERSION, ModelState.UNAVAILABLE, "why"),
)


@pytest.mark.parametrize(("version", "expected"), [("", 10), ("1", 1), ("10", 10), ("01", 1)])
def test_resolve_returns_the_highest_ready_version(version: str, expected: int) -> None:
    assert TABLE.resolve("m", version).version == expected


def test_no_version_means_the_stable_one_of_a_rollout() -> None:
    entries = (entry("m", 1), entry("m", 2), entry("m", 3))
    table = RoutingTable(7, True, entries, splits=(Split("r", "m", stable=2, candidate=3, weight=500_000),))
    assert table.resolve("m").version == 2 and table.resolve("m", "3").version == 3
    found = table.resolve("m")
    assert found.split == table.splits[0] and table.resolve("m") is found
    assert table.resolve("m", "2").split is None and not any(each.split for each in table.ready)
    assert [found.answering(version).version for version in ("2", "3", "")] == [2, 3, 2]
    lost = RoutingTable(7, True, entries, splits=(Split("r", "m", stable=5, candidate=3),))
    assert lost.resolve("m").version == 3, "a stable version that is not there answers nothing"


REFUSALS = [
    ("x", "", ErrorCode.NOT_FOUND, "Request for unknown model: 'x' is not found"),
    ("m", "3", ErrorCode.NOT_FOUND, "Request for unknown model: 'm' version 3 is not found"),
    ("m", "2", ErrorCode.UNAVAILABLE, "Request for unknown model: 'm' version 2 is not at ready state"),
    ("gone", "", ErrorCode.NOT_FOUND, "Request for unknown model: 'gone' has no available versions"),
    ("bad", "", ErrorCode.NOT_FOUND, "Request for unknown model: 'bad' has no available versions"),
]


@pytest.mark.parametrize(("name", "version", "code", "text"), REFUSALS)
def test_resolve_refuses(name: str, version: str, code: ErrorCode, text: str) -> None:
    with pytest.raises(InferError) as caught:
        TABLE.resolve(name, version)
    assert (caught.value.code, caught.value.message) == (code, text)


def test_model_that_is_loading_is_unavailable_for_now() -> None:
    table = RoutingTable(
        7, True, (entry("new", 1, ModelState.UNAVAILABLE), entry("new", 2, ModelState.LOADING))
    )
    with pytest.raises(InferError) as caught:
        table.resolve("new")
    assert caught.value.code is ErrorCode.UNAVAILABLE and caught.value.retry_after_s > 0
    text = "Request for unknown model: 'new' has no available versions: version 2 is loading"
    assert caught.value.message == text


def test_unknown_model_may_still_come_while_the_server_starts() -> None:
    with pytest.raises(InferError) as caught:
        RoutingTable(7, False).resolve("new")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == "Request for unknown model: 'new' is not found: models are loading"


NAMESPACES = RoutingTable(
    7,
    True,
    (
        entry("/a::m", 1),
        entry("/b::m", 2),
        entry("/a::single", 1),
        entry("/b::single", 1, ModelState.UNAVAILABLE, "unloaded"),
        entry("/a::gone", 1, ModelState.UNAVAILABLE, "unloaded"),
        VersionEntry("/a::bad", NO_VERSION, ModelState.UNAVAILABLE, "why"),
    ),
    namespacing=True,
)
AMBIGUOUS = (
    "There are 2 identifiers of model 'm' in global map, "
    "model namespace must be provided to resolve ambiguity."
)


def test_unique_name_needs_no_namespace() -> None:
    assert NAMESPACES.resolve("single").name == "/a::single"
    assert NAMESPACES.resolve("single").model == "single"
    assert NAMESPACES.ready_versions("single") == [1]


def test_identifier_selects_one_of_several_namespaces() -> None:
    assert [NAMESPACES.resolve(name).version for name in ("/a::m", "/b::m")] == [1, 2]


@pytest.mark.parametrize("name", ["m", "gone", "bad", "x"])
def test_resolve_refuses_an_ambiguous_or_unknown_name(name: str) -> None:
    with pytest.raises(InferError) as caught:
        NAMESPACES.resolve(name)
    text = AMBIGUOUS if name == "m" else f"Request for unknown model: '{name}' is not found"
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)
    assert NAMESPACES.versions(name) is None


def test_all_ready_ignores_models_unloaded_by_request() -> None:
    assert table(entry("m", 1), entry("gone", 1, ModelState.UNAVAILABLE, "unloaded")).all_ready
    assert not table(entry("m", 1, ModelState.UNAVAILABLE, "it broke")).all_ready
    assert not table(entry("m", 1, ModelState.LOADING)).all_ready
    assert table(entry("m", 1), entry("m", 2, ModelState.UNLOADING)).all_ready


def test_model_that_could_not_be_read_is_unknown_and_does_not_make_the_server_unready() -> None:
    found = table(entry("m", 1), VersionEntry("bad", NO_VERSION, ModelState.UNKNOWN, "why"))
    assert found.all_ready and [each.loaded for each in found.entries] == [True, False]
    with pytest.raises(InferError, match="Request for unknown model: 'bad' is not found"):
        found.resolve("bad")


def test_table_of_a_failed_start_refuses_requests() -> None:
    failed = RoutingTable(1, failed=True)
    with pytest.raises(InferError) as caught:
        failed.resolve("m")
    assert (caught.value.code, caught.value.message) == (ErrorCode.UNAVAILABLE, "Server not ready")


def test_entries_of_an_older_table_are_not_current() -> None:
    found = TABLE.resolve("m")
    assert TABLE.is_current(found)
    newer = msgspec.structs.replace(TABLE, entries=tuple(map(msgspec.structs.replace, TABLE.entries)))
    assert newer.resolve("m") == found and not newer.is_current(found)
    assert not table().is_current(found)


def test_table_survives_its_way() -> None:
    decoded = decode_table(encode_table(TABLE))
    assert decoded == TABLE
    assert decoded.applications.keys() == {"m:1", "m:10"}


def test_version_that_sleeps_is_idle_until_its_replica_is_connected() -> None:
    def idle(**fields: Any) -> bool:
        return VersionEntry("m", 1, ModelState.READY, application="m:1", **fields).idle

    assert idle(scale=Scale(0, asleep=True)) and idle(scale=Scale(1, asleep=True))
    assert not idle(scale=Scale(1)) and not idle()
