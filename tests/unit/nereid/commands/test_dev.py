"""`nereid dev`."""

import gc
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.settings.flag.errors import SettingsError
from deployments.environments.progress import work, working
from nereid.commands import dev
from nereid.engine.repository import Applied
from nereid.engine.watch import Change
from tests.server import free_port
from tests.unit.nereid.engine.repositories import add_model, source
from tests.waiting import block_until


def test_flags_of_the_server_are_taken_too(tmp_path: Path) -> None:
    path = str(tmp_path)
    found = dev.settings_of([path, "--http-port=9000", "--load-model", "a", "--load-model=b"])
    assert (found.http.port, found.repository.startup_models) == (9000, ("a", "b"))
    assert found.repository.control_mode == "explicit" and not found.log.log_info
    assert dev.settings_of([path]).repository.startup_models == ("*",)
    assert dev.settings_of([path, "--model-control-mode=none"]).repository.control_mode == "none"
    with pytest.raises(SettingsError, match="unrecognized option '--http-prt'; did you mean '--http-port'"):
        dev.settings_of([path, "--http-prt=1"])


def test_a_repository_is_a_word_or_a_flag_anywhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    found = dev.settings_of(["--http-port", "9000", str(tmp_path), f"--model-repository={other}"])
    assert found.repository.paths == (str(tmp_path), str(other))


def test_a_wrong_command_line_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (([str(tmp_path / "none")], "there is no directory"), ([], "nereid dev REPOSITORY")):
        assert dev.main(words) == 2
        said = capsys.readouterr().err
        assert text in said and said.count("\n") == 1


def test_models_do_not_find_the_arguments_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = [f"--{name}-port={free_port()}" for name in ("http", "grpc", "metrics")]
    seen: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["nereid", "dev", str(tmp_path), *ports])
    monkeypatch.setattr(dev, "serve", lambda *_: seen.append(sys.argv))
    monkeypatch.setattr(dev, "_stop_on_signal", threading.Event)
    dev.main([str(tmp_path), *ports])
    assert seen == [[""]]


def test_texts_of_changes() -> None:
    done = Change(Applied("m", True, 0.123), ["1/model.py"], True)
    assert dev.described(done) == "m: 1/model.py changed; loaded in 0.12 s"
    assert dev.described(done._replace(files=[])) == "m: files changed; loaded in 0.12 s"
    failed = Change(Applied("m", True, 0.1, "Internal: no\n"), ["a", "b", "c", "d", "e", "f"], True)
    assert dev.described(failed) == (
        "m: a, b, c, d, e and 1 more changed; NOT loaded, what was loaded before is still served."
        " Save it again when it is mended:\n  Internal: no"
    )
    assert "it is not served" in dev.described(failed._replace(served=False))
    assert dev.described(Change(Applied("m", False, 0.1), [], False)) == "m: removed, and unloaded"


def test_a_repository_is_served_and_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path, "m")
    ports = [free_port() for _ in range(3)]
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    stop = threading.Event()
    serving = threading.Thread(target=dev.serve, args=(dev.settings_of([str(tmp_path), *flags]), stop))
    thresholds = gc.get_threshold()
    frozen, objects = gc.get_freeze_count(), [list[int]() for _ in range(10_000)]
    serving.start()
    try:
        printed = ""

        def shows(text: str) -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return text in printed

        block_until(lambda: shows("Saved files are loaded at once"))
        assert "1 of 1 models are ready" in printed
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/v2/health/ready", timeout=5) as answer:
            assert answer.status == 200
        # Or each collection stops requests for 50 ms.
        block_until(lambda: gc.get_freeze_count() > frozen + len(objects) / 2)
        (tmp_path / "m" / "1" / "model.py").write_text(source("raise ValueError", head="1 / 0"))
        block_until(lambda: shows("NOT loaded"))
        block_until(lambda: shows("ZeroDivisionError"))
    finally:
        stop.set()
        serving.join(20)
        gc.set_threshold(*thresholds)
    assert not serving.is_alive()


def test_processes_that_a_model_forks_end_by_signals() -> None:
    program = """if True:
        import os, signal
        from nereid.commands import dev

        stop = dev._stop_on_signal()
        end, far_end = os.pipe()
        child = os.fork()
        if not child:
            os.write(far_end, b"1")
            signal.pause()
        os.read(end, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(30)
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_is_waited_for_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lifecycle = SimpleNamespace(initialised=False)
    engine = SimpleNamespace(repository=SimpleNamespace(lifecycle=lifecycle, loading=["a", "b"]))
    pauses = iter([None, None, None])

    def pause(_: float) -> None:
        try:
            next(pauses)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("nereid.commands.dev.time.sleep", pause)
    with working("installing requirements.txt of model 'a'"), pytest.raises(KeyboardInterrupt):
        dev._tell_progress(cast(Any, engine))
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["loading a, loading b, installing requirements.txt of model 'a' (0 s)"] * 3
    assert work() == []
