"""Which models make room: the oldest that may go, no more than needed, ensembles as one."""

import pytest

from deployments.residency.eviction import Eviction, Resident, plan_evictions, together

A = Resident("a", 10, used_at=1.0)
B = Resident("b", 20, used_at=2.0)
C = Resident("c", 30, used_at=3.0)
IN_USE = Resident("d", 100, used_at=0.0, kept="is in use")


@pytest.mark.parametrize(
    ("excess", "names"),
    [
        (-5, ()),
        (0, ()),
        (1, ("a",)),
        (10, ("a",)),
        (11, ("b",)),
        (30, ("a", "b")),
        (31, ("a", "c")),
        (60, "abc"),
    ],
)
def test_the_oldest_go_first_and_none_without_need(excess: int, names: tuple[str, ...]) -> None:
    assert plan_evictions([IN_USE, C, A, B], excess) == Eviction(tuple(names))


def test_none_is_evicted_in_vain() -> None:
    assert plan_evictions([IN_USE, A, B, C], 61) == Eviction((), missing=1)


def test_a_model_that_frees_nothing_stays() -> None:
    assert plan_evictions([Resident("empty", 0, 0.0), A], 5) == Eviction(("a",))


def test_models_of_an_ensemble_share_the_last_use_and_the_reason_to_stay() -> None:
    found = {model.name: model for model in together([IN_USE, A, B, C], [("a", "c"), ("b", "d"), ("a", "x")])}
    assert {name: (model.used_at, model.kept) for name, model in found.items()} == {
        "a": (3.0, ""),
        "b": (2.0, "is in use"),
        "c": (3.0, ""),
        "d": (2.0, "is in use"),
    }
