"""Energy, where the machine tells."""

from pathlib import Path

import pytest

from app.cost.energy import Energy


def write(power: Path, stat: Path, uj: int, ticks: int) -> None:
    package = power / "intel-rapl:0"
    (power / "intel-rapl:0:0").mkdir(parents=True, exist_ok=True)
    package.mkdir(parents=True, exist_ok=True)
    (package / "energy_uj").write_text(str(uj))
    (package / "max_energy_range_uj").write_text("1000000000")
    stat.write_text(f"cpu  {ticks} 0 0 999 0 0 0 0 0 0\ncpu0 1\n")


def test_joules_for_a_second_of_processor_time(tmp_path: Path) -> None:
    power, stat = tmp_path / "powercap", tmp_path / "stat"
    write(power, stat, 1_000_000, 100)
    energy = Energy(power, stat)
    write(power, stat, 21_000_000, 300)
    assert energy.joules_per_second() == pytest.approx(10.0)
    write(power, stat, 11_000_000, 400)  # the counter has begun anew
    assert energy.joules_per_second() == pytest.approx(990.0)


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert Energy(tmp_path / "missing", tmp_path / "stat").joules_per_second() is None
