"""`nereid cost report` over ledgers on disk."""

import csv
import json
import re
from pathlib import Path

import pytest

from app.core.cost.ledger import LedgerWriter
from app.core.cost.rows import LedgerRow, began_at
from nereid.commands.cost import command
from nereid.console.server_record import ServerRecord

HOUR = "2026-11-26T21:00:00Z"
OLD = "2026-11-20T00:00:00Z"
PRICES = "currency: EUR\ncpu_core_hour: 36\nmemory_gib_hour: 0.1\n"


def rows(hour: str, node: str) -> list[LedgerRow]:
    return [
        LedgerRow(hour, "usage", node, "wine", "1", "web", "", 12.5, 3600.0, requests=100, rows=200),
        LedgerRow(hour, "usage", node, "wine", "2", "", "", 2.5, requests=10, rows=10),
        LedgerRow(hour, "idle", node, "wine", "1", cpu_seconds=1.0, reserved_core_seconds=90.0),
        LedgerRow(hour, "overhead", node, "ingress", cpu_seconds=4.0),
        LedgerRow(hour, "measured", node, cpu_seconds=20.5, node_core_seconds=14400.0),
    ]


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(command, "clock", lambda: began_at(HOUR) + 1800)
    monkeypatch.setattr(command, "running_servers", list)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("a", "b"):
        LedgerWriter(tmp_path / name).append([*rows(OLD, name), *rows(HOUR, name)])
    (tmp_path / "prices.yaml").write_text(PRICES)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def shown(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    assert command.main(["report", *words]) == status
    return capsys.readouterr().out.splitlines()


def test_a_table_ends_in_the_reconciliation(ledgers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, ledgers[0])
    assert lines[0] == "1 hour with figures, that of 2026-11-26 21:00 to that of 2026-11-26 21:00 UTC; 1 node"
    cells = [re.split(r"  +", line.strip()) for line in lines[2:9]]
    assert cells[0] == [
        "token",
        "model",
        "requests",
        "rows",
        "core-s",
        "GiB-h",
        "alloc. core-s",
        "alloc. GiB-h",
    ]
    assert cells[1] == ["web", "wine", "100", "200", "12.5", "1", "90", "1"]
    assert cells[2][:3] == ["(no token)", "wine", "10"]
    assert cells[3][:2] == ["idle", "wine"] and cells[4][:2] == ["idle", "(not allocated)"]
    assert cells[5][:2] == ["overhead", "ingress"] and cells[6][0] == "total"
    assert lines[-1] == (
        "attributed 15.0 + idle 1.0 + overhead 4.0 = 20.0 core-seconds, measured 20.5: difference -2.44 %"
    )


def test_ledgers_of_several_nodes_are_one_report(
    ledgers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, *ledgers, "--by", "node", "--since", "7d")
    assert lines[0].startswith("2 hours") and lines[0].endswith("2 nodes")
    assert [line.split(":")[0] for line in lines[-3:-1]] == ["a", "b"]
    assert "measured 82.0: difference -2.44 %" in lines[-1]


def test_prices_add_what_both_views_cost(ledgers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    prices = str(Path(ledgers[0]).parent / "prices.yaml")
    lines = shown(capsys, ledgers[0], "--prices", prices, "--by", "token")
    assert re.split(r"  +", lines[2].strip())[-4:] == [
        "usage EUR",
        "alloc. core-s",
        "alloc. GiB-h",
        "alloc. EUR",
    ]
    assert re.split(r"  +", lines[3].strip())[5] == "0.2250"  # 12.5 s of 36 EUR/h, and a GiB-hour of 0.1


def test_csv_and_json_have_every_line(
    ledgers: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices, path = str(tmp_path / "prices.yaml"), tmp_path / "cost.csv"
    (text,) = shown(capsys, ledgers[0], "--prices", prices, "--csv", str(path), "--json")
    made = json.loads(text)
    found = list(csv.DictReader(path.read_text().splitlines()))
    assert len(found) == len(made["lines"]) == 5
    assert (found[0]["kind"], found[0]["token"], found[0]["requests"]) == ("usage", "web", "100")
    assert float(found[0]["cost_total"]) == pytest.approx(made["lines"][0]["cost"]["total"])
    assert made["nodes"]["a"]["measured"] == 20.5


def test_names_cannot_command_a_spreadsheet_or_a_page(
    tmp_path: Path, ledgers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "=HYPERLINK(1)<script>\x1b[2J"
    LedgerWriter(tmp_path / "c").append([LedgerRow(HOUR, "usage", "c", evil, "1", cpu_seconds=1.0)])
    paths = tmp_path / "cost.csv", tmp_path / "cost.html"
    lines = shown(capsys, str(tmp_path / "c"), "--csv", str(paths[0]), "--html", str(paths[1]))
    assert "\x1b" not in "".join(lines)
    assert "'=HYPERLINK" in paths[0].read_text()
    assert "<script" not in paths[1].read_text() and "&lt;script&gt;" in paths[1].read_text()


def test_a_page_has_charts_and_the_reconciliation(
    ledgers: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "cost.html"
    shown(capsys, *ledgers, "--since", "7d", "--html", str(path), "--prices", str(tmp_path / "prices.yaml"))
    text = path.read_text()
    assert text.count("<svg") == 4
    assert "difference -2.44 %" in text and "default-src 'none'" in text


def test_the_ledgers_of_running_servers_are_read_by_default(
    ledgers: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ServerRecord(pid=1, birth="1", version="1", ledger=ledgers[0])
    monkeypatch.setattr(command, "running_servers", lambda: [record, record])
    assert "measured 20.5" in shown(capsys)[-1]


def test_without_a_server_that_of_the_users_state_is_read(
    ledgers: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert shown(capsys, status=1) == ["the ledger has no hour of that time"]
    LedgerWriter(tmp_path / "state" / "nereid" / "cost").append(rows(HOUR, "a"))
    assert "measured 20.5" in shown(capsys)[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--by", "user"), "'user' is none of token, model"),
        (("--since", "yesterday"), "'yesterday' is neither a time"),
    ],
)
def test_wrong_arguments_are_named(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        command.main(["report", *words])
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(
    ledgers: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown(capsys, str(tmp_path / "none"), status=1)
    (tmp_path / "bad.yaml").write_text("currency: EUR\ncpu_core_hour: free\n")
    assert command.main(["report", ledgers[0], "--prices", str(tmp_path / "bad.yaml")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/bad.yaml: cpu_core_hour: Expected `float`, got `str`" in said
