"""Load plans as functions of wanted and served versions."""

from app.routing.table import ModelState, VersionEntry
from deployments.manager.loading.candidate import plan_load


def entry(version: int, state: ModelState = ModelState.READY) -> VersionEntry:
    return VersionEntry("m", version, state, application=f"m:{version}")


def test_first_load_starts_everything() -> None:
    assert plan_load([2, 1], [], []) == ((1, 2), (), (), ())


def test_unchanged_versions_stay() -> None:
    assert plan_load([1, 2], [entry(1)], [1]) == ((2,), (1,), (), ())


def test_changed_version_starts_beside_the_old_one() -> None:
    assert plan_load([1], [entry(1)], []) == ((1,), (), (), ())


def test_version_out_of_policy_is_retired() -> None:
    assert plan_load([2], [entry(1)], [1]) == ((2,), (), (entry(1),), ())


def test_failed_version_is_started_again() -> None:
    assert plan_load([1], [entry(1, ModelState.UNAVAILABLE)], [1]) == ((1,), (), (), ())


def test_change_of_instances_is_an_update() -> None:
    assert plan_load([1, 2], [entry(1)], [], [1]) == ((2,), (), (), (1,))


def test_unserved_version_is_started_instead_of_updated() -> None:
    assert plan_load([1], [entry(1, ModelState.UNAVAILABLE)], [], [1]) == ((1,), (), (), ())


def test_unchanged_version_is_not_updated() -> None:
    assert plan_load([1], [entry(1)], [1], [1]) == ((), (1,), (), ())
