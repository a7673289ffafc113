"""`nereid rollout`, with a server that is a few answers."""

import getpass
import http.server
import json
import re
import ssl
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.rollout.outcomes import Outcomes, VersionOutcomes
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus, Verdict
from app.protocol.rollout import history_fields, status_fields
from nereid.commands.rollout import command, rollback
from nereid.commands.rollout.page import page
from nereid.commands.rollout.text import comparison, duration, line, screen
from tests.certificates import Authority
from tests.unit.app.rollout_fakes import REJECTED, STARTED, rollout, rollout_history

DONE = RolloutState.DONE


class Server:
    """Answers with the statuses in turn, the last one for ever; keeps what it is asked."""

    def __init__(self, *answers: RolloutStatus | str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any, str]] = []
        self.url = ""
        self.listening: Any = None

    def answer(self, path: str) -> tuple[int, bytes]:
        if path.endswith("/history"):
            return 200, msgspec.json.encode(history_fields(rollout_history()))
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, str):
            return 400, json.dumps({"error": found}).encode()
        return 200, msgspec.json.encode(status_fields(found))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(command, "pause", lambda seconds: None)
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    state = Server(rollout())

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            state.asked.append((self.command, self.path, body, self.headers.get("Authorization", "")))
            status, answer = state.answer(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        state.listening = listening
        state.url = f"http://127.0.0.1:{listening.server_port}"
        yield state
        listening.shutdown()


def run(server: Server, *argv: str) -> int:
    return command.main([*argv, f"--server={server.url}"])


def test_status_shows_both_versions_and_the_evidence(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "status", "m/x") == 0
    assert server.asked == [("GET", "/v2/models/m%2Fx/rollout", None, "")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("identity, version 1 -> 2: step of 25 %, for ")
    assert "[##########..............................] 25 % to version 2 (steps: 1, 5, 25, 50, 100)" in lines
    rows = {row[0]: row[1:] for row in (re.split("  +", one) for one in lines) if len(row) > 2}
    assert rows["requests"] == ["3,000", "1,000"]
    assert rows["error rate"] == ["1 % (0.701-1.42)", "1 % (0.544-1.83)"]
    assert any(one.startswith("evidence of errors") and "2.5, an alarm from 1,000 on" in one for one in lines)
    assert "an error rate from 3.1 % on would have been noticed" in lines


REASONS = {"out of <memory>": 7, "no such key 'x'": 2, "a replica was lost": 1, "rare": 1}


def test_most_frequent_failures_are_told_in_words() -> None:
    total = Outcomes(candidate=VersionOutcomes(ok=9, failed=11, reasons=REASONS))
    status = rollout(total=total, outcomes=Outcomes())
    lines = comparison(status)
    at = lines.index("version 2 failed most by")
    assert [line.split(maxsplit=1) for line in lines[at + 1 : at + 5]] == [
        ["7", "out of <memory>"],
        ["2", "no such key 'x'"],
        ["1", "a replica was lost"],
        [],
    ]
    assert "version 2 failed most by" in screen(status, STARTED) and "out of &lt;memory&gt;" in page(
        status, 1
    )
    assert "version 2 failed most by" not in screen(rollout(), STARTED)


@pytest.mark.parametrize(
    ("fields", "after", "says"),
    [
        ({"state": RolloutState.LOADING}, 1, "next: the first requests, when version 2 is loaded"),
        (
            {},
            23,
            "next: 50 % in 37 s, if nothing is wrong; rolled back by an alarm, paused if it has not passed",
        ),
        (
            {"outcomes": Outcomes()},
            61,
            "next: 50 % after 200 more requests, if nothing is wrong; rolled back",
        ),
        ({"percent": 50.0, "outcomes": Outcomes()}, 2, "next: 100 % in 58 s and after 200 more requests"),
        (
            {"state": RolloutState.PROMOTED},
            60,
            "next: version 1 is unloaded in 4 min 0 s, its files stay; until then it answers 1 %",
        ),
        (
            {"state": RolloutState.PAUSED},
            60,
            "next: nothing by itself; nereid rollout resume, promote or abort",
        ),
        ({"state": RolloutState.ROLLING_BACK}, 1, "next: version 2 is unloaded, its files stay"),
        (
            {"state": RolloutState.FAILED},
            1,
            "version 2 is unloaded, its files stay; it is not tried again until",
        ),
        ({"state": RolloutState.DONE}, 1, "version 1 is unloaded, its files stay"),
    ],
)
def test_what_comes_next_and_when(fields: dict[str, Any], after: float, says: str) -> None:
    status = rollout(**fields)
    now = status.since + after
    assert screen(status, now)[-1].startswith(says) and says.partition(";")[0] in page(status, now).replace(
        "Next", "next"
    ).replace("Version", "version")


@pytest.mark.parametrize("action", ["pause", "resume", "promote", "abort"])
def test_a_change_is_posted_and_its_status_shown(
    server: Server, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, action, "m") == 0
    body = {"action": action, "user": "ann"}
    assert server.asked == [("POST", "/v2/repository/models/m/rollout", body, "")]
    assert "identity, version 1 -> 2" in capsys.readouterr().out


def test_start_sends_version_weight_and_the_fields_of_a_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("steps: [1, 50]\njudge:\n  latency: null\n")
    assert run(server, "start", "m", "--candidate=3", "--weight", "0.5", "--spec", str(file)) == 0
    ((_, _, body, _),) = server.asked
    assert body == {
        "action": "start",
        "candidate": 3,
        "weight": 0.5,
        "spec": {"steps": [1, 50], "judge": {"latency": None}},
        "user": "ann",
    }


def test_a_rollback_sends_version_and_reason(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"action": "rollback", "version": 1, "why": "ticket 7", "user": "ann"}
    assert run(server, "rollback", "m", "--to", "1", "--why", "ticket 7") == 0
    assert rollback.main(["m", "--to=1", "--why=ticket 7", "--server", server.url]) == 0
    assert [asked[2] for asked in server.asked] == [body, body]
    capsys.readouterr()
    assert run(server, "forget", "m", "--version=3") == 0
    assert server.asked[-1][2] == {"action": "forget", "version": 3, "user": "ann"}
    shown = capsys.readouterr().out
    assert shown.startswith("identity: version 3 is not rejected any more. The next load takes it as new")
    assert run(server, "forget", "m") == 0
    assert capsys.readouterr().out.startswith("identity: no version is rejected any more.")


def test_a_history_says_who_when_and_why(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, "history", "m") == 0
    shown = capsys.readouterr().out
    assert "identity: version 1 answers requests without a version" in shown
    failed = "version 3 failed, version 1 answers (10 of 1,000 failed at the candidate, 30 of 3,000 at the"
    assert failed in shown and "rolled back from version 2 to version 1" in shown
    assert "version 3 was rolled back on 2023-11-14 22:14 UTC by ops for: errors: 30 of 40" in shown
    assert "'nereid rollout forget identity' or new files bring it back" in shown
    assert run(server, "history", "m", "--json") == 0
    assert json.loads(capsys.readouterr().out)["events"][2]["who"] == "ops"


def test_a_status_names_what_was_rejected(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [rollout(rejected=(REJECTED,))]
    for name in ("status", "report"):
        assert run(server, name, "m") == 0
        assert "version 3 was rolled back on" in capsys.readouterr().out
    assert "version 3 was rolled back on" in page(rollout(rejected=(REJECTED,)), STARTED)


def test_the_token_of_a_file_is_sent_or_that_of_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    run(server, "status", "m", f"--token-file={file}")
    monkeypatch.setenv("NEREID_TOKEN", "other")
    run(server, "status", "m")
    assert [asked[3] for asked in server.asked] == ["Bearer secret", "Bearer other"]


def test_a_certificate_of_ones_own_authority_is_named_by_a_flag(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    server.listening.socket = context.wrap_socket(server.listening.socket, server_side=True)
    server.url = server.url.replace("http:", "https:")
    assert run(server, "status", "m") == 1
    assert "--ca-file" in capsys.readouterr().err
    assert run(server, "status", "m", f"--ca-file={authority.root}") == 0
    assert run(server, "status", "m", f"--ca-file={tmp_path}/absent") == 1
    assert "absent" in capsys.readouterr().err


def test_a_refusal_is_one_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = ["cannot pause the rollout of 'm': it is paused already"]
    assert run(server, "pause", "m") == 1
    text = f"{server.url}: HTTP 400 Bad Request: cannot pause the rollout of 'm': it is paused already\n"
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("fly", "m"),
        ("pause",),
        ("pause", "m", "--weight=5"),
        ("start", "m", "--spec=/none"),
        ("status", "m", "--token-file=/none"),
    ],
)
def test_wrong_arguments_have_a_status_of_their_own(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2


def test_abort_has_succeeded_when_the_rollout_is_aborted(server: Server) -> None:
    server.answers = [rollout(state=RolloutState.ROLLING_BACK, percent=0.0)]
    assert run(server, "abort", "m") == 0
    assert run(server, "status", "m") == 1
    server.answers = [rollout(state=RolloutState.ROLLING_BACK), rollout(state=RolloutState.ABORTED)]
    assert run(server, "abort", "m", "--watch") == 0


def test_a_rollout_that_is_over_shows_all_its_requests(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers = [rollout(state=RolloutState.DONE, outcomes=Outcomes())]
    assert run(server, "status", "m") == 0
    assert re.search("requests +6,000 +2,000", capsys.readouterr().out)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("aborted", 1)])
def test_watching_ends_with_the_rollout_and_says_how(
    server: Server, state: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    over = rollout(state=RolloutState(state), percent=100.0, reason="all steps passed")
    server.answers = [rollout(), rollout(), rollout(percent=50.0), over]
    assert run(server, "status", "m", "--watch") == code
    lines = capsys.readouterr().out.splitlines()
    assert [one.partition(";")[0] for one in lines] == [
        "identity, version 1 -> 2: step of 25 %",
        "identity, version 1 -> 2: step of 50 %",
        f"identity, version 1 -> 2: {state}",
    ]


def test_watching_endures_a_server_that_is_away_for_a_while(server: Server) -> None:
    server.answers = [rollout(), *["the repository manager does not answer"] * 60, rollout(state=DONE)]
    assert run(server, "status", "m", "--watch") == 0
    server.answers = [rollout(), *["the repository manager does not answer"] * 61, rollout(state=DONE)]
    assert run(server, "status", "m", "--watch") == 1


def test_a_terminal_is_drawn_over(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    server.answers = [rollout(), rollout(state=RolloutState.DONE)]
    assert run(server, "status", "m", "--watch") == 0
    first, again = capsys.readouterr().out.split("\x1b[J")
    assert first.endswith(f"\x1b[{len(first.splitlines()) - 1}A")
    assert "done, for " in again


def test_a_name_cannot_command_the_terminal(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers = [rollout(reason="\x1b[2Jgone")]
    run(server, "status", "m")
    assert "\x1b" not in capsys.readouterr().out


def test_report_compares_all_quantiles_and_mirrored_outputs(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.html"
    assert run(server, "report", "m", f"--html={file}") == 0
    text = capsys.readouterr().out
    for part in ("p50 ", "p90 ", "p95 ", "p99 ", "98 % (96.1-99)", "largest difference"):
        assert part in text
    assert "identity, version 1 → 2" in file.read_text()


class Reader(HTMLParser):
    """Checks that elements are closed in order, and collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.fetched += [f"{name}={value}" for name, value in attributes if name in ("src", "href", "onload")]
        assert tag not in ("script", "link", "img", "iframe")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(status: RolloutStatus) -> Reader:
    reader = Reader()
    text = page(status, STARTED + 300)
    reader.feed(text)
    reader.close()
    assert reader.open == [] and reader.fetched == []
    assert "nan" not in text.lower().replace("nanosecond", "") and "url(" not in text
    return reader


def test_page_shows_texts_as_texts() -> None:
    event = RolloutEvent(STARTED, RolloutState.STEP, 1.0, "<i>", "a & b <script>alert(1)</script>")
    verdict = Verdict(alarms=("errors: <b>",), evidence={"errors": 5000.0})
    reader = read(rollout(model="<img src=x>", reason='"><script>', history=(event,), verdict=verdict))
    texts = " ".join(reader.texts)
    for text in ("<img src=x>", '"><script>', "a & b <script>alert(1)</script>", "errors: <b>"):
        assert text in texts


def test_page_has_a_chart_for_what_is_known() -> None:
    text = page(rollout(), STARTED + 300)
    assert len(re.findall("<svg", text)) == 4
    nothing = page(rollout(total=Outcomes(), outcomes=Outcomes(), history=(), verdict=Verdict()), STARTED)
    assert "<svg" not in nothing
    read(rollout(total=Outcomes(), outcomes=Outcomes(), history=(), verdict=Verdict()))


def test_a_rollout_without_requests_has_dashes() -> None:
    empty = rollout(total=Outcomes(), outcomes=Outcomes(), verdict=Verdict(waiting="a request"))
    assert "error rate  -                   -" in screen(empty, STARTED)
    assert "waiting for a request" in comparison(empty)
    assert "version 2: 0 requests, - errors, p95 -" in line(empty)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7290, "2 h 1 min"), (90000, "1 d 1 h")],
)
def test_duration_has_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
