"""No request costs more on its way than was committed to: see `benchmarks/path.py`."""

import json
import subprocess
import sys

import pytest

from app.native.choice import is_native
from benchmarks.path import LIMITS, NATIVE, PROTOCOLS, PYTHON, Threads, exceeded, limits
from benchmarks.tools import ROOT


@pytest.fixture(scope="module")
def measured() -> dict[str, Threads]:
    """In a process of its own: other tests leave threads, caches and garbage behind."""
    command = [sys.executable, "-m", "benchmarks.path", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Threads] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_costs_no_more_than_committed(measured: dict[str, Threads], protocol: str) -> None:
    if not limits():
        pytest.skip(f"{LIMITS.name} is for another Python than {PYTHON}")
    total = measured[protocol]["all"]
    assert not exceeded(total, limits()[protocol]), "python -m benchmarks.path tells where"
    assert total["slabs"] + total["channel"] >= 1, "a tensor reaches the replica one way or the other"
    assert measured[protocol]["ingress"]["bytecodes"] > 500 < measured[protocol]["replica"]["bytecodes"]


@pytest.mark.timeout(600)
@pytest.mark.skipif(not is_native("auto"), reason="the data plane is not compiled")
@pytest.mark.parametrize("cell", NATIVE)
def test_a_request_costs_no_more_where_the_data_plane_is_compiled(
    measured: dict[str, Threads], cell: str
) -> None:
    if not limits():
        pytest.skip(f"{LIMITS.name} is for another Python than {PYTHON}")
    assert not exceeded(measured[cell]["all"], limits()[cell]), "python -m benchmarks.path tells where"
    python = measured[cell.removesuffix(" native")]["all"]
    assert 100 < measured[cell]["all"]["bytecodes"] < python["bytecodes"]


def test_what_counts_as_more() -> None:
    committed = {"bytecodes": 1000.0, "channel": 0.0, "slabs": 2.0}
    assert exceeded({"bytecodes": 1149.0, "channel": 0.05, "slabs": 2.0}, committed) == []
    assert exceeded({"bytecodes": 1151.0, "channel": 0.05, "slabs": 1.0}, committed) == [
        "bytecodes: 1151.00, committed are 1000.00"
    ]
    assert exceeded({"bytecodes": 1.0, "channel": 1.0, "slabs": 3.0}, committed) == [
        "channel: 1.00, committed are 0.00",
        "slabs: 3.00, committed are 2.00",
    ]
