"""Rows of the ledger add up, and an hour has a bounded number of them."""

import pytest

from app.core.cost.rows import OTHER, HourBound, LedgerRow, began_at, hour_of, summed

HOUR = "2026-11-26T21:00:00Z"


def row(model: str = "wine", token: str = "anna", **fields: object) -> LedgerRow:
    return LedgerRow(HOUR, "usage", "node", model, "1", token, **fields)  # type: ignore[arg-type]


def test_an_hour_is_that_of_its_moments() -> None:
    assert hour_of(began_at(HOUR) + 3599.9) == HOUR
    assert hour_of(began_at(HOUR) + 3600) == "2026-11-26T22:00:00Z"
    with pytest.raises(ValueError):
        began_at("2026-11-26T21:30:00Z")


def test_rows_of_one_key_add_up() -> None:
    rows = [row(cpu_seconds=1.5, requests=2), row(token="ben", requests=7), row(cpu_seconds=0.5, bytes_in=9)]
    first, second = summed(rows)
    assert (first.cpu_seconds, first.requests, first.bytes_in) == (2.0, 2, 9)
    assert (second.token, second.requests) == ("ben", 7)


def test_an_unknown_energy_stays_unknown() -> None:
    assert row(energy_joules=2.0).plus(row(energy_joules=3.0)).energy_joules == 5.0
    assert row(energy_joules=2.0).plus(row(energy_joules=None)).energy_joules is None
    assert row(energy_joules=None).plus(row()).energy_joules is None


def test_clients_beyond_the_bound_share_a_row_of_their_model() -> None:
    bound = HourBound(most=2)
    fitted = [bound.fitted(row(token=name)).token for name in ("a", "b", "c", "d", "a", "")]
    assert fitted == ["a", "b", OTHER, OTHER, "a", ""]


def test_models_beyond_the_bound_share_a_row_of_their_kind() -> None:
    bound = HourBound(most=2)
    keys = {bound.fitted(row(f"model{number}", "anna")).key for number in range(100)}
    assert len(keys) == 2 * 2 + 1
    assert (HOUR, "usage", "node", OTHER, "", OTHER, "") in keys


def test_nothing_is_lost_beyond_the_bound() -> None:
    bound = HourBound(most=3)
    rows = [row(f"model{number % 7}", f"token{number}", requests=1) for number in range(200)]
    assert sum(each.requests for each in summed(map(bound.fitted, rows))) == 200


def test_rows_that_were_there_before_keep_their_place() -> None:
    bound = HourBound([row(token="a"), row(token="b")], most=2)
    assert [bound.fitted(row(token=name)).token for name in ("b", "c")] == ["b", OTHER]
