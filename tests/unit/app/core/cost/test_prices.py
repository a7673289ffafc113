"""The price file, and what rows cost by it."""

from pathlib import Path

import pytest

from app.core.cost.prices import CORE_SECONDS, Energy, energy, parse_prices, price, read_prices, spent
from app.core.cost.rows import LedgerRow

TEXT = """
currency: EUR
cpu_core_hour: 0.04
memory_gib_hour: 0.005
gpu_hour: {"NVIDIA H100*": 3.0, "*": 1}
energy_kwh: 0.3
egress_gib: 0.08
watts_per_core: 10
"""


def row(**fields: object) -> LedgerRow:
    return LedgerRow("2026-11-26T21:00:00Z", "usage", "n", "wine", "1", "anna", **fields)  # type: ignore[arg-type]


def test_a_row_costs_the_sum_of_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(TEXT)
    amount = price(
        row(
            cpu_seconds=7200.0,
            memory_gib_seconds=3600.0 * 4,
            gpu="NVIDIA H100 80GB HBM3",
            gpu_seconds=1800.0,
            energy_joules=3.6e6,
            bytes_out=1 << 29,
        ),
        read_prices(path),
    )
    assert amount == pytest.approx((0.08, 0.02, 1.5, 0.3, 0.04))
    assert amount.total == pytest.approx(1.94)
    assert amount.plus(amount).total == pytest.approx(3.88)


def test_a_gpu_has_the_price_of_the_first_name_that_fits() -> None:
    prices = parse_prices(TEXT)
    assert (prices.gpu("NVIDIA H100 PCIe"), prices.gpu("NVIDIA L4")) == (3.0, 1.0)
    assert parse_prices("currency: EUR").gpu("NVIDIA L4") == 0.0


def test_energy_that_was_not_measured_is_estimated_or_unknown() -> None:
    unknown = row(cpu_seconds=100.0, energy_joules=None)
    assert energy(unknown, None) == energy(unknown, parse_prices("currency: EUR")) == Energy(None)
    assert energy(unknown, parse_prices(TEXT)) == Energy(1000.0, estimated=True)
    assert energy(row(cpu_seconds=100.0, energy_joules=7.0), parse_prices(TEXT)) == Energy(7.0)
    assert price(unknown, parse_prices("{currency: EUR, energy_kwh: 1}")).total == 0.0


def test_a_budget_is_spent_in_its_unit() -> None:
    used = row(cpu_seconds=3600.0)
    prices = parse_prices(TEXT)
    assert spent(used, CORE_SECONDS, None) == 3600.0
    assert spent(used, "EUR", prices) == pytest.approx(0.04)
    assert spent(used, "USD", prices) == spent(used, "EUR", None) == 0.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`, got `null`"),
        ("[", "it is no YAML: "),
        ("cpu_core_hour: 1", "missing required field `currency`"),
        ("currency: euro", "currency: Expected `str` matching regex"),
        ("{currency: EUR, cpu_hour: 1}", "contains unknown field `cpu_hour`"),
        ("{currency: EUR, cpu_core_hour: free}", "cpu_core_hour: Expected `float`, got `str`"),
        ("{currency: EUR, cpu_core_hour: -1}", "cpu_core_hour: Expected `float` >= 0"),
        ("{currency: EUR, gpu_hour: {L4: -1}}", "gpu_hour[...]: Expected `float` >= 0"),
        ("{currency: EUR, egress_gib: .inf}", "egress_gib: inf is no price"),
        ("{currency: EUR, gpu_hour: {L4: .nan}}", "gpu_hour[...]: Expected `float` >= 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_prices(text)
    assert said in str(raised.value)
