"""`nereid status` and `nereid env`, with a server that is a record and a few answers."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from nereid.commands import env, status, traffic
from nereid.commands.table import COMMANDS
from nereid.console import server_record
from nereid.console.server_record import ServerRecord, birth_of, running_servers, write_record
from tests.server import ROOT

INDEX = [{"name": "simple", "version": "1", "state": "READY"}, {"name": "bad", "reason": "first\nsecond"}]


def metrics(look: int) -> str:
    """A hundred more answers each look, one of a hundred of 20 to 100 ms, and ten failures."""
    name = 'model="simple",version="1"'
    lines = [
        f"nv_inference_request_success{{{name}}} {100 * look}",
        f'nv_inference_request_failure{{{name},reason="OTHER"}} {10 * look}',
        f"nv_inference_pending_request_count{{{name}}} 7",
        f'nereid_request_duration_seconds_bucket{{{name},le="0.02"}} {98 * look}',
        f'nereid_request_duration_seconds_bucket{{{name},le="0.1"}} {100 * look}',
        f'nereid_request_duration_seconds_bucket{{{name},le="+Inf"}} {100 * look}',
    ]
    return "\n".join(["# HELP x y", *lines, ""])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each look be a second after the one before, without waiting."""
    now = iter(range(1000))
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(now) / 2)
    monkeypatch.setattr(status, "time", clock)


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(server_record, "_SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(server_record, "_SERVICE", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server that answers as Nereid does."""

    looks = iter(range(1, 100))

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = "/v2/health/ready", "/metrics", "/v2/nereid/server"
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            if self.path == "/v2/nereid/server":
                flags = {"--metrics-port": str(server.server_port), "--model-repository": "/far"}
                listed = [{"flag": flag, "value": value} for flag, value in flags.items()]
                self.wfile.write(json.dumps({"version": "1.3", "settings": listed}).encode())
            if self.path == "/metrics":
                self.wfile.write(metrics(next(looks)).encode())

        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(INDEX).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def record(pid: int = 0, http: str = "", dashboard: str = "", **environment: str) -> ServerRecord:
    pid = pid or os.getpid()
    made = ServerRecord(
        pid=pid,
        birth=birth_of(pid),
        version="1.2",
        http=http,
        metrics=f"{http}/metrics" if http else "",
        repositories=("/models",),
        data_plane="python: no compiler",
        ray="127.0.0.1:6379",
        dashboard=dashboard,
        environment={"RAY_ADDRESS": "127.0.0.1:6379", **environment},
    )
    write_record(made)
    return made


def test_record_of_a_running_server_is_found() -> None:
    made = record()
    assert running_servers() == [made]


def test_server_with_another_directory_for_temporary_files_is_found(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(private / "job"))
    made = record()
    monkeypatch.setattr("tempfile.tempdir", str(private / "shell"))
    assert running_servers() == [made]


def test_server_of_a_service_with_its_own_tmp_is_found(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(private / "run"))
    monkeypatch.setattr(server_record, "_SHARED", str(private / "own"))
    made = record()
    monkeypatch.setattr(server_record, "_SHARED", str(private / "other"))
    monkeypatch.setattr("tempfile.tempdir", str(private / "shell"))
    assert running_servers() == [made]


def test_records_in_the_directory_of_another_are_not_read(private: Path) -> None:
    record()
    for root in private.glob("**/nereid-*"):
        root.chmod(0o755)
    assert running_servers() == []


def test_record_of_an_ended_or_other_process_is_removed(private: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        birth = birth_of(ended.pid)
    write_record(ServerRecord(pid=ended.pid, birth=birth, version="1"))
    write_record(msgspec.structs.replace(record(), birth="1"))
    assert running_servers() == []
    assert list(private.glob("**/*.json")) == []


def test_status_shows_state_models_and_processes(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(http=address)
    assert status.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Nereid 1.2, process {os.getpid()}: ready"
    assert f"  HTTP       {address}" in lines and "  Models     /models" in lines
    assert "  Data plane python: no compiler" in lines
    models = next(at for at, line in enumerate(lines) if line.startswith("model "))
    assert lines[models].split() == [
        "model",
        "version",
        "state",
        "requests/s",
        "pending",
        "p99",
        "ms",
        "reason",
    ]
    assert lines[models + 1].split() == ["simple", "1", "READY", "220", "(20", "failed)", "7", "60"]
    assert lines[models + 2].split() == ["bad", "-", "not", "loaded", "first"]
    assert any(line.startswith(f"{os.getpid()} ") for line in lines[models:])


def test_status_of_a_server_elsewhere(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["--server", f"{address}/"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Nereid 1.3: ready" and f"  Metrics    {address}/metrics" in lines
    assert "  Models     /far" in lines and not [line for line in lines if line.split()[:1] == ["pid"]]
    assert [line.split()[:4] for line in lines if line.startswith("simple")] == [
        ["simple", "1", "READY", "220"]
    ]


def test_server_elsewhere_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["--server", "http://localhost:1"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Nereid: not ready (Connection refused)") and "no list of models: Conn" in shown


@pytest.mark.parametrize("command", ["status", "drift", "rollout status", "rollback"])
def test_commands_about_a_server_choose_it_alike(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *words = command.split()
    with pytest.raises(SystemExit):
        COMMANDS[name].run([*words, "--help"], lambda argv: None)
    shown = capsys.readouterr().out
    assert all(f"  {flag} " in shown for flag in ("--server", "--ca-file", "--pid", "--token-file"))


def test_status_as_json(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(http=address)
    assert status.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (simple, bad) = found["models"]
    assert simple["requests_per_second"] == 220 and simple["failures_per_second"] == 20
    assert (simple["pending"], simple["p99_ms"]) == (7, 60) and "pending" not in bad
    assert found["state"] == "ready"
    assert os.getpid() in [each["pid"] for each in found["processes"]]


def test_watched_status_is_shown_anew(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(http=address)
    waits = iter(range(3))

    def wait(seconds: float) -> None:
        if next(waits, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    with pytest.raises(KeyboardInterrupt):
        status.main(["--watch", "--json"])
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 3 and {each["models"][0]["pending"] for each in shown} == {7}


def test_traffic_of_counters_that_began_anew_and_of_none() -> None:
    before, after = (traffic.read(metrics(look)) for look in (5, 1))
    (found,) = traffic.between(before, after, 10.0).values()
    assert (found.requests_per_second, found.failures_per_second) == (11, 1)
    (still,) = traffic.between(after, after, 1.0).values()
    assert still == traffic.Traffic(0, 0, 7, None)
    assert traffic.quantile([(0.1, 5.0), (float("inf"), 10.0)], 0.99) == 0.1
    odd = r'nv_inference_request_success{model="a\"b\n",version="1",le="x"} 3'
    assert traffic.read(odd) == {('a"b\n', "1"): traffic.Counted(ok=3)}


def test_status_of_a_server_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    record(http="http://127.0.0.1:1")
    assert status.main([]) == 1
    text = capsys.readouterr().out
    assert ": not ready (" in text and "no list of models: " in text and "Traceback" not in text


def test_processes_are_all_descendants() -> None:
    code = "import subprocess as s; s.run(['sh', '-c', 'echo; read x'], stdin=0)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        found = {process.pid: process for process in status.processes(os.getpid())}
        assert any(process.title.startswith("sh -c") for process in found.values())
        assert found[child.pid].memory > 0
        child.communicate(b"\n")


def test_env_prints_what_a_shell_reads(capsys: pytest.CaptureFixture[str]) -> None:
    record(dashboard="http://127.0.0.1:8265", RAY_AUTH_TOKEN_PATH="/a b/token")
    assert env.main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    names = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "PYTHONPATH")
    script = shown.out + "".join(f'echo "${name}"\n' for name in names)
    read = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, env={"PYTHONPATH": "/own"}
    )
    assert read.stdout.splitlines() == ["127.0.0.1:6379", "/a b/token", f"/own:{ROOT}"]
    assert "# data plane: python: no compiler" in shown.out.splitlines()


def test_env_without_a_dashboard_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    assert env.main([]) == 0
    assert "--allow-dashboard=true" in capsys.readouterr().err


@pytest.mark.parametrize("command", [env, status])
def test_without_a_server_there_is_one_sentence(
    command: object, private: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 1  # type: ignore[attr-defined]
    first, second = capsys.readouterr().err.splitlines()
    registered = [f"{private}{place}/nereid-{os.getuid()}/servers" for place in ("", "/shared", "/run")]
    assert first == f"no server of this user is registered in {', '.join(registered)}"
    assert second == "start one: nereid --model-repository=DIRECTORY"


def test_one_of_several_servers_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    record(os.getppid())
    assert env.main([]) == 1
    assert f"--pid={os.getppid()}" in capsys.readouterr().err
    assert env.main([f"--pid={os.getpid()}"]) == 0
