"""What is shown of how far a run is: seconds, or answers where they end it."""

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from nereid_client.tools.perf.bench import Bench
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.options import Options, read_address
from nereid_client.tools.progress import Shown
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import add_model


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "double")
    yield from serve(repository, load_model=["double"])


def shown_of(addresses: Addresses, **fields: int | float) -> str:
    """Measure two in flight; return the lines."""
    lines = StringIO()
    options = Options("double", read_address(addresses.http, "http"), shapes={"IN": (2,)}, **fields)  # type: ignore[arg-type]
    with Shown(Console(file=lines, width=200), "double") as shown, Bench(options, shown) as bench:
        bench.measure(Level("concurrency", 2))
    return lines.getvalue()


def test_requests_of_requested(addresses: Addresses) -> None:
    assert shown_of(addresses, requests=20) == "double, 2 in flight: 0 of up to 20 requests\n"


def test_requests_of_all_windows(addresses: Addresses) -> None:
    shown = shown_of(addresses, window_requests=10, windows=4, warmup_s=0.1)
    assert shown == "double, 2 in flight: 0 of up to 40 requests\n"


def test_seconds(addresses: Addresses) -> None:
    assert shown_of(addresses, duration_s=0.3, warmup_s=0.1) == "double, 2 in flight: 0 of up to 0 s\n"


def test_the_lines_of_a_stage_count_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, now = StringIO(), [0.0]
    monkeypatch.setattr("nereid_client.tools.progress.time.monotonic", lambda: now[0])
    with Shown(Console(file=lines), "m") as shown:
        for now[0], done in ((100, 0), (101, 3), (111, 7)):
            shown.tick("2 in flight", done, 10, unit="requests")
        shown.tick("3 in flight", 0, 5)
    assert lines.getvalue().splitlines() == [
        "m, 2 in flight: 0 of up to 10 requests",
        "m, 2 in flight: 7 of up to 10 requests",
        "m, 3 in flight: 0 of up to 5 s",
    ]
