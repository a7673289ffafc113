"""What a run looks like: CSV, tables, page."""

import csv
from html.parser import HTMLParser

import numpy as np

from nereid_client.tools import charts
from nereid_client.tools.perf.compare import Change
from nereid_client.tools.perf.figures import Window
from nereid_client.tools.perf.generator.job import End, Level
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.report.csv import csv_text
from nereid_client.tools.perf.report.export import profile
from nereid_client.tools.perf.report.page import page
from nereid_client.tools.perf.result import Seen
from nereid_client.tools.perf.server_share import Share
from tests.unit.client.tools.perf.rows import MS, RATE, result, rows

SHARE = Share(100, 0, 400, 50, 3000.0, 1000.0, 100.0, 1500.0, 50.0, 0, {"step<1>": Share(100, total_us=7)})
COLUMNS = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


def test_csv_has_the_columns_of_perf_analyzer() -> None:
    got = csv_text([result([5] * 100, Level("concurrency", 4), server=SHARE, batch=2)])
    head, row = got.splitlines()
    assert head == COLUMNS
    assert row == "4,200,0,2350,1000,100,1500,50,0,5000,5000,5000,5000"


def test_csv_of_rates_and_a_percentile_of_ones_own() -> None:
    got = csv_text([result([5] * 100)], percent=75, verbose=True)
    row = next(csv.DictReader(got.splitlines()))
    assert row["Request Rate"] == "100" and row["p75 latency"] == "5000" and row["Failed"] == "0"
    assert row["Network+Server Send/Recv"] == "5000" and row["Server Queue"] == "0"


def test_table_and_notes_tell_what_is_wrong() -> None:
    stalled = result([1] * 100 + [2000 - 10 * i for i in range(200)] + [1] * 100)
    closed = result([5] * 100, Level("concurrency", 4), server=SHARE)
    console = text.console()
    with console.capture() as captured:
        console.print(text.results_table([stalled, closed]))
        console.print(text.share_table([stalled, closed]))
    printed = captured.get()
    assert "unstable" in printed and "4 in flight" in printed and "step<1>" in printed and "8.00" in printed
    assert list(text.notes([stalled, closed])) == ["100/s: no answer for 2.00 s, from 1.0 s on", text.CLOSED]


def test_text_with_colons_is_printed_as_it_is() -> None:
    console = text.console()
    with console.capture() as captured:
        console.print("give START:END:STEP", markup=False)
    assert captured.get() == "give START:END:STEP\n"


class Tags(HTMLParser):
    """Counts tags, and finds what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.fetched += [name for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


def test_page_is_whole_and_fetches_nothing() -> None:
    names = ("url", "server", "arrivals", "when")
    document = {"model": "<b>m</b>", "batch": 1, "slo": None, **{name: "x" for name in names}}
    levels = [result([5, 7] * 50, Level("rate", rate), server=SHARE) for rate in (100, 200)]
    made = page(document, levels, [Change("100/s", "p99", 5, 7, "worse")])
    tags = Tags()
    tags.feed(made)
    assert tags.open == [] and tags.fetched == [] and "<b>" not in made and "NaN" not in made
    assert (
        tags.titles[:3] == ["Loads", "Beside the earlier run", "Latency over load"] and len(tags.titles) == 6
    )


def test_page_of_a_search_has_the_objective_and_the_rate_that_keeps_it() -> None:
    names = ("url", "server", "arrivals", "when")
    slo = {"rules": "p99<6ms,errors<1%", "rate": 100, "why": "", "tried": []}
    document = {"model": "m", "batch": 1, "slo": slo, "busy_machine": "busy", **{name: "x" for name in names}}
    levels = [
        result([ms] * 100, Level("rate", rate), server=SHARE) for rate, ms in ((200, 7), (50, 4), (100, 5))
    ]
    made = page(document, levels, [])
    Tags().feed(made)
    rates = [made.index(f"<td>{rate}/s</td>") for rate in (50, 100, 200)]
    assert rates == sorted(rates), "by rate"
    assert made.count("<tr class=best>") == 1 and made.index("<tr class=best>") < rates[1] < made.index(
        "kept"
    )
    assert 'class="limit"' in made and "p99 &lt; 6" in made and made.count('class="marked"') == 2
    assert "requests/s asked" in made and ">busy<" in made and "100/s keeps p99&lt;6ms,errors&lt;1%" in made
    assert "step&lt;1&gt;" in made and "±" in made, "steps of the ensemble, and the spread"


def test_long_names_beside_bars_are_cut_and_told_by_the_pointer() -> None:
    made = charts.bars({"classifier_with_a_long_name<2>": {"queue": 3.0}}, "us")
    assert ">classifier_with_a_lon…<title>classifier_with_a_long_name&lt;2&gt;</title>" in made


def test_axes_place_values() -> None:
    axis = charts.linear([0, 87], "ms")
    assert axis.at(0) == 0 and axis.at(100) == 1 and axis.ticks[-1] == (100.0, "100")
    axis = charts.logarithmic([2, 300], "ms")
    assert axis.at(1) == 0 and axis.at(1000) == 1
    nines = charts.nines("percentile")
    assert round(nines.at(99) - nines.at(90), 6) == round(nines.at(99.9) - nines.at(99), 6) == 0.2


def test_export_has_the_requests_that_were_answered() -> None:
    records = np.concatenate([rows([3, 4]), rows([5], end=End.REFUSED)])
    windows = (Window(1, 1, 0, 1, 50 * MS),)
    seen = [Seen(level, records, 0, 50 * MS, windows, True) for level in (RATE, Level("concurrency", 2))]
    first, second = profile(seen, "1.0", 1000)["experiments"]
    assert first["experiment"] == {"mode": "request_rate", "value": 100}
    assert second["experiment"] == {"mode": "concurrency", "value": 2}
    assert [(r["timestamp"], r["response_timestamps"]) for r in first["requests"]] == [
        (1000, [3 * MS + 1000]),
        (10 * MS + 1000, [14 * MS + 1000]),
    ]
    assert first["window_boundaries"] == [1000, 50 * MS + 1000]
