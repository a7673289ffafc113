"""Signals that end a run, machines that are busy."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from nereid_client.tools.perf import machine
from nereid_client.tools.perf.command.run import main
from nereid_client.tools.perf.signals import Signals, Stopped
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import add_model


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "double")
    yield from serve(repository, load_model=["double"])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ("--rate", "50", "--duration", "60")),
        (signal.SIGTERM, ("--slo", "p99<2s", "--duration", "60")),
    ],
)
def test_what_was_measured_is_printed_when_a_signal_ends_the_run(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], number: signal.Signals, words: tuple[str, ...]
) -> None:
    before = signal.getsignal(number)
    timer = threading.Timer(4.5, os.kill, (os.getpid(), number))
    timer.start()
    status = main(["-m", "double", "-u", addresses.http, "--shape", "IN:2", "--warmup", "0.2", *words])
    timer.join()
    printed = capsys.readouterr().out
    assert status == 128 + number and "/s: a signal ended it" in printed
    assert ("p99<2s: a signal ended the search" in printed) == ("--slo" in words)
    assert signal.getsignal(number) is before


def test_second_signal_ends_a_run_at_once() -> None:
    with Signals() as signals, signals.held():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.number == signal.SIGTERM
        with pytest.raises(Stopped) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.status == 143


def test_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert machine.busy_because(0.2) == "" and "1.5 of its 2 processors" in machine.busy_because(1.5)
    assert 0 <= machine.used_by_others() <= 1000
