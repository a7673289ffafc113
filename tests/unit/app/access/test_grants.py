"""Tokens in force."""

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.grants import MAX_NAMES, SUFFICIENT, Grant, Grants
from app.access.tokens import SCOPES, Token, bearer, make_token
from app.core.cost.budgets import parse_budget
from app.core.errors import ErrorCode, Failure, InferError
from app.protocol.restrictions import CATEGORIES

NEEDS: Any = list(SUFFICIENT)


def token(name: str = "a", secret: str = "secret", **fields: Any) -> Token:
    return make_token(secret, **{"name": name, "scope": ("infer",), **fields})


def at(now: float) -> Callable[[], float]:
    return lambda: now


def held(grants: Grants, secret: str = "secret") -> Grant:
    grant = grants.find(f"Bearer {secret}")
    assert grant is not None
    return grant


def refused(call: Any, *arguments: Any) -> InferError:
    with pytest.raises(InferError) as raised:
        call(*arguments)
    return raised.value


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer t", "t"),
        ("Bearer t\x1d", "t\x1d"),
        ("t\x85", "t\x85"),
        ("\x0bt\x0c", "t"),
        ("bearer  t ", "t"),
        ("BEARER\tt", "t"),
        ("t", "t"),
        (" t\t", "t"),
        ("", ""),
        ("Basic t", ""),
        ("Bearer t x", ""),
        ("Bearer", "Bearer"),
    ],
)
def test_a_header_has_a_bearer_or_a_bare_token(header: str, found: str) -> None:
    assert bearer(header) == found


@given(st.text(st.characters(max_codepoint=255)))
def test_any_header_is_read_and_none_is_a_token_by_chance(header: str) -> None:
    found = bearer(header)
    assert not set(found) & set(string.whitespace)
    assert Grants([token(secret="x" * 43)]).find(header) is None


def test_an_empty_token_is_none_even_if_its_hash_is_in_the_file() -> None:
    grants = Grants([token(secret="")])
    assert grants.find("") is None and grants.find("Basic x") is None


def test_every_category_has_scopes_that_suffice() -> None:
    assert {*SUFFICIENT} == {*CATEGORIES, "metrics"}
    assert all(SUFFICIENT.values())
    assert {scope for scopes in SUFFICIENT.values() for scope in scopes} == {*SCOPES}


@pytest.mark.parametrize(
    ("scope", "needs"),
    [
        ("infer", {"health", "metadata", "inference", "model-config", "statistics"}),
        ("metrics", {"metadata", "statistics", "metrics"}),
        ("feedback", {"feedback"}),
        (
            "manage",
            {"health", "metadata", "model-config", "statistics", "model-repository", "shared-memory"}
            | {"trace", "logging"},
        ),
    ],
)
def test_a_scope_is_good_for_its_needs_only(scope: str, needs: set[str]) -> None:
    grants = Grants([token(scope=(scope,))])
    refusals = {need: grants.refusal(held(grants), need) for need in NEEDS}
    assert {need for need, refusal in refusals.items() if refusal is None} == needs
    for refusal in filter(None, refusals.values()):
        assert refusal.code is ErrorCode.PERMISSION_DENIED


def test_a_refusal_says_what_is_missing() -> None:
    grants = Grants([token(models=("a*", "b?"))])
    assert grants.find("Bearer other") is None
    unknown = grants.refusal(None, "inference")
    assert unknown is not None and unknown.code is ErrorCode.UNAUTHENTICATED
    lacking = grants.refusal(held(grants), "trace")
    assert lacking is not None and lacking.message == "the token 'a' lacks the scope manage"
    other = grants.refusal(held(grants), "inference", "c")
    assert other is not None and other.message == "the token 'a' is not for the model 'c'"


@pytest.mark.parametrize(
    ("patterns", "permitted", "others"),
    [
        (("*",), ["a", "a/b", "x::y"], []),
        (("a*", "b?"), ["a", "abc", "b1", ""], ["b", "b12", "ca", "A", "\na"]),
        (("[ab]_x",), ["a_x", "b_x"], ["c_x", "a_xx"]),
        (("a.b",), ["a.b"], ["axb", "a.b\n"]),
        (("x", "a*b"), ["ab", "a\nb"], ["xab", "abx"]),
    ],
)
def test_models_are_permitted_by_patterns(
    patterns: tuple[str, ...], permitted: list[str], others: list[str]
) -> None:
    grant = held(Grants([token(models=patterns)]))
    assert all(map(grant.permits, permitted)) and not any(map(grant.permits, others))


def test_what_names_no_model_may_concern_the_whole_server() -> None:
    grants = Grants([token(models=("a*",)), token("all", "other")])
    some, all_ = held(grants), held(grants, "other")
    for whole in (False, True):
        some.require("ab", whole)
        all_.require("", whole)
    some.require("")
    text = "the token 'a' is for some models only (a*), and this concerns the whole server"
    assert str(refused(some.require, "", True)) == text and some.outcomes.denied == 1
    refusal = grants.refusal(some, "inference", whole=True)
    assert refusal is not None and refusal.message == text


def test_a_rate_is_limited_with_the_time_to_wait() -> None:
    grants = Grants([token(rate="2/s")])
    grant = held(grants)
    assert not grant.begin(at(1.0)) and not grant.begin(at(1.0)), "nothing is in flight that had to end"
    error = refused(grant.begin, at(1.0))
    assert (error.code, error.retry_after_s) == (ErrorCode.RESOURCE_EXHAUSTED, 0.5)
    assert str(error) == "the token 'a' is limited to 2/s inferences, try again in 0.5 s"
    assert not grant.begin(at(1.5))
    assert (grant.outcomes.ok, grant.outcomes.limited) == (3, 1)


def test_inferences_in_flight_are_limited() -> None:
    grant = held(Grants([token(concurrency=2, rate="9/s")]))
    assert grant.begin(at(0.0)) and grant.begin(at(0.0))
    error = refused(grant.begin, at(0.0))
    assert error.code is ErrorCode.RESOURCE_EXHAUSTED and error.retry_after_s
    grant.end()
    assert grant.begin(at(0.0))
    assert (grant.outcomes.ok, grant.outcomes.limited) == (3, 1)


def test_a_change_applies_to_who_holds_the_token_and_keeps_limits() -> None:
    grants = Grants([token(rate="1/h"), token("gone", "other")])
    grant, gone = held(grants), held(grants, "other")
    grant.begin(at(0.0))
    number = grants.number
    grants.replace([token(rate="1/h", models=("b",))])
    assert grants.number != number and held(grants) is grant and not grant.revoked
    assert refused(grant.require, "a").code is ErrorCode.PERMISSION_DENIED
    assert refused(grant.begin, at(1.0)).code is ErrorCode.RESOURCE_EXHAUSTED, "the rate is what it was"
    grants.replace([token(rate="2/s")])
    assert not grant.begin(at(1.0))
    assert gone.revoked and grants.find("Bearer other") is None
    assert refused(gone.require, "a").code is ErrorCode.UNAUTHENTICATED


def test_a_revoked_token_that_returns_is_in_force_again() -> None:
    grants = Grants([token()])
    grants.replace([])
    assert grants.find("Bearer secret") is None
    grants.replace([token()])
    assert not held(grants).revoked


def test_names_counted_are_bounded() -> None:
    grants = Grants()
    for turn in range(3):
        grants.replace([token(f"n{turn}-{n}", f"{turn}-{n}") for n in range(60)])
    for n in range(60):
        grant = held(grants, f"2-{n}")
        grant.begin(at(0.0))
        grants.denied(grant)
    grants.denied(None)
    assert len(grants.counted) == MAX_NAMES + 2
    assert (grants.counted["other"].ok, grants.counted["other"].denied) == (60, 60)
    assert grants.counted["anonymous"].denied == 1
    assert sum(outcomes.ok for outcomes in grants.counted.values()) == 60


def test_a_header_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grants, hashed = Grants([token()]), []

    def digest(secret: str) -> str:
        hashed.append(secret)
        return token(secret=secret).sha256

    monkeypatch.setattr("app.access.grants.digest", digest)
    assert len({id(held(grants)) for _ in range(5)}) == 1
    assert hashed == ["secret"]


def test_a_token_whose_budget_is_spent_is_refused_until_that_is_over() -> None:
    grants = Grants([token(budget="5 EUR/d"), token("b", "other")])
    assert grants.budgets() == {"a": parse_budget("5 EUR/d")}
    spent = Failure(ErrorCode.RESOURCE_EXHAUSTED, "spent", retry_after_s=7.0)
    grants.overspend({"a": spent})
    error = refused(held(grants).begin, at(0.0))
    assert (error.code, error.retry_after_s) == (ErrorCode.RESOURCE_EXHAUSTED, 7.0)
    assert held(grants).outcomes.limited == 1
    held(grants, "other").begin(at(0.0))
    grants.overspend({})
    held(grants).begin(at(0.0))
