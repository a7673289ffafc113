"""`nereid perf` and a server."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nereid_client import connect
from nereid_client.tools.perf.command.run import main
from tests.contract.conftest import Addresses
from tests.server import WITH_ENGINE, Server

SHORT = ("--duration", "0.4", "--warmup", "0.1")


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: Addresses) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


@pytest.fixture
def grpc_url(server: Addresses) -> str:
    return f"grpc://{server.grpc}"


def measured(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    """Run the command; return what it prints as JSON."""
    assert main([*words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_table(grpc_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["-m", "simple", "-u", grpc_url, "--rate", "50", *SHORT, "--html", str(page)]) == 0
    printed = capsys.readouterr()
    assert "50/s" in printed.out and "where the time goes" in printed.out and "simple, 50/s" in printed.err
    assert page.read_text().startswith("<!doctype html>")


def test_answers_are_checked(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    step = {"INPUT0": list(range(16)), "INPUT1": [1] * 16}
    file = tmp_path / "data.json"
    words = ("-m", "simple", "-u", url, "--input-data", str(file), "--concurrency", "2", *SHORT)
    for right in (True, False):
        wanted = {"OUTPUT0": [n + 1 if right else 0 for n in range(16)]}
        file.write_text(json.dumps({"data": [step], "validation_data": [wanted]}))
        (level,) = measured(capsys, *words, "--expect", str(file), status=0 if right else 1)["levels"]
        assert level["requests"] > 5 and level["wrong"] == (0 if right else level["requests"])


def test_sequences_in_steps(grpc_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "simple_sequence", "-u", grpc_url, "--num-of-sequences", "3", "--sequence-length", "4")
    (level,) = measured(capsys, *words, "--rate", "60", *SHORT, "--sequence-id-range", "7001")["levels"]
    assert level["failed"] == 0 and level["server"]["requests"] >= level["requests"] > 5


def test_streams(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "repeat_int32", "-u", url, "--streaming", "--shape", "IN:3", "--shape", "DELAY:3", "-z")
    (level,) = measured(capsys, *words, "--rate", "20", *SHORT, "--expect", "first")["levels"]
    assert level["failed"] == 0 and level["streams"]["responses"] == 3 * level["requests"] > 5


def test_windows_of_so_many_requests_and_their_export(
    grpc_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("-m", "simple", "-u", grpc_url, "--concurrency", "1", "--warmup", "0", "-s", "1000")
    windows = ("--measurement-mode", "count_windows", "--measurement-request-count", "5")
    file = tmp_path / "profile.json"
    (level,) = measured(capsys, *words, *windows, "--profile-export-file", str(file))["levels"]
    assert len(level["windows"]) == 3 and level["requests"] >= 15 and level["stable"]
    (experiment,) = json.loads(file.read_text())["experiments"]
    assert len(experiment["requests"]) == level["requests"] and len(experiment["window_boundaries"]) == 4
    assert abs(experiment["requests"][0]["timestamp"] / 1e9 - time.time()) < 60


def test_shared_memory(grpc_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "simple", "-u", grpc_url, "--shared-memory", "system", "--concurrency", "2", *SHORT)
    (level,) = measured(capsys, *words)["levels"]
    assert level["failed"] == 0 and level["requests"] > 5
    with connect(grpc_url) as connected, connected.pool(1) as pool:
        names = [path.name for path in Path("/dev/shm").glob("nereid-pool-*")]
        left = [name for name in names if not _is_of_another(int(name.split("-")[2]))]
        assert left == [pool.region], "the region of the run is gone"


def _is_of_another(pid: int) -> bool:
    """Whether a process is another one that runs: of the suite over the other data plane."""
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="there is a GPU")
def test_memory_of_a_gpu_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "simple", "-u", url, "--shared-memory", "cuda", *SHORT]) == 1
    assert "--shared-memory cuda: " in capsys.readouterr().err


def test_model_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "nobody", "-u", url, "--rate", "1"]) == 1
    assert "unknown model: 'nobody'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(WITH_ENGINE, reason="stops the process of an ingress")
def test_stopped_server_is_seen_by_an_open_loop(
    nereid_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two seconds of twenty at 200 a second: a tenth of the requests begin while nothing is answered."""
    (ingress,) = nereid_server.replicas("nereid:ingress")

    def stop() -> None:
        time.sleep(9)
        os.kill(ingress, signal.SIGSTOP)
        time.sleep(2)
        os.kill(ingress, signal.SIGCONT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    words = ("-m", "simple", "-u", nereid_server.http_url, "--rate", "200", "--duration", "20")
    (level,) = measured(capsys, *words)["levels"]
    stopper.join()
    assert level["latency"]["percentiles"]["p99"] >= 1000 and not level["stable"]
    assert any("no answer for" in reason for reason in level["reasons"])
