"""The draw between two versions: exact for few requests, the same in every process for a key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.rollout.spec import HeaderRule
from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest, RolloutHint
from app.routing.canary import Diffusion, draws_candidate, heed_headers, part_of

WEIGHTS = st.integers(0, WHOLE)


def split(weight: int = WHOLE // 2, **fields: Any) -> Split:
    return Split("r", "m", stable=1, candidate=2, weight=weight, salt="s", **fields)


def request(**fields: Any) -> InferRequest:
    return InferRequest("m", "", (), **fields)


def drawn(count: int, split: Split, asked: InferRequest) -> int:
    diffusion = Diffusion()
    return sum(draws_candidate(split, asked, diffusion) for _ in range(count))


@pytest.mark.parametrize(
    ("percent", "count", "expected"), [(1, 200, 2), (1, 50, 1), (25, 8, 2), (100, 7, 7), (0, 1000, 0)]
)
def test_a_small_share_of_few_requests_is_exact(percent: int, count: int, expected: int) -> None:
    assert drawn(count, split(percent * WHOLE // 100), request()) == expected


@given(WEIGHTS, st.integers(1, 300), st.integers(0, 300))
def test_any_requests_in_a_row_have_their_share(weight: int, count: int, before: int) -> None:
    diffusion = Diffusion()
    for _ in range(before):
        diffusion.draws(weight)
    chosen = sum(diffusion.draws(weight) for _ in range(count))
    assert abs(chosen - count * weight / WHOLE) <= 1


@given(st.text(), WEIGHTS, WEIGHTS)
def test_a_rising_weight_moves_no_key_back(key: str, one: int, other: int) -> None:
    low, high = sorted((one, other))
    asked = request(id=key, sequence_id=0)
    if draws_candidate(split(low, sticky="id"), asked, Diffusion()) and key:
        assert drawn(3, split(high, sticky="id"), asked) == 3


def test_keys_are_spread_by_weight_and_salt() -> None:
    keys = [f"user {number}" for number in range(2000)]
    shares = [sum(part_of(salt, key) < WHOLE // 10 for key in keys) for salt in ("one", "other")]
    assert all(150 < share < 250 for share in shares)
    assert {key for key in keys if part_of("one", key) < WHOLE // 10} != {
        key for key in keys if part_of("other", key) < WHOLE // 10
    }
    assert part_of("s", "user 1") == 492059, "the same in every process, and after an update"


@pytest.mark.parametrize(
    ("sticky", "fields"),
    [
        ("id", {"id": "x"}),
        ("parameter:user", {"parameters": {"user": 7}}),
        ("header:x-user", {"rollout": RolloutHint(key="x")}),
        ("none", {"sequence_id": 7}),
        ("none", {"sequence_id": "seven"}),
        ("none", {"id": "outer", "chain": ("ensemble",)}),
        ("none", {"rollout": RolloutHint(key="outer"), "chain": ("caller",)}),
        ("id", {"id": "inner", "rollout": RolloutHint(key="outer"), "chain": ("caller",)}),
    ],
)
def test_requests_that_belong_together_get_one_version(sticky: str, fields: dict[str, Any]) -> None:
    assert drawn(10, split(sticky=sticky), request(**fields)) in (0, 10)


@pytest.mark.parametrize(
    ("sticky", "fields"),
    [
        ("none", {"id": "x"}),
        ("id", {}),
        ("parameter:user", {"parameters": {"other": 7}}),
        ("header:x-user", {"id": "x"}),
    ],
)
def test_requests_without_a_key_are_drawn_one_by_one(sticky: str, fields: dict[str, Any]) -> None:
    assert drawn(10, split(sticky=sticky), request(**fields)) == 5


RULES = (HeaderRule("X-Version", "new"), HeaderRule("x-version", "old", "stable"))


@pytest.mark.parametrize("weight", [0, WHOLE])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [([("x-VERSION", "new")], "candidate"), ([("a", "b"), ("X-Version", "old")], "stable"), ([], "")],
)
def test_header_rules_count_at_any_weight(weight: int, headers: list[tuple[str, str]], expected: str) -> None:
    found = heed_headers(split(weight, match=RULES), request(), headers)
    wanted = 3 if (expected or ("candidate" if weight else "stable")) == "candidate" else 0
    assert drawn(3, split(weight, match=RULES), found) == wanted


def test_a_header_is_the_key_of_a_sticky_rollout() -> None:
    found = heed_headers(split(sticky="header:X-User"), request(), [("x-user", "ann")])
    assert found.rollout == RolloutHint(key="ann")
    plain = request()
    assert heed_headers(split(sticky="id"), plain, iter(())) is plain
