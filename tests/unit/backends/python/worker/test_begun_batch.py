"""Batches of real processes that are sent, and finished when there is a reply, without waiting for it."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.base import Begun, Request
from backends.python.backend import PythonBackend
from tests.unit.backend_harness import Call, Served, config, infer
from tests.unit.backends.python.worker.process_model import MODEL
from tests.unit.python_models import text, write
from tests.waiting import block_until


@pytest.fixture(scope="module")
def served(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write(tmp_path_factory.mktemp("model"), MODEL)
    made = Served(PythonBackend, config(text()), folder, interpreter=python)
    yield made
    made.close()


def call(do: str, values: int = 2) -> Call:
    return Call(infer({"I": np.ones((1, values), np.float32)}, parameters={"do": do}))


def begin(served: Served, *requests: Request) -> Begun:
    begun = served.backend.instance_begin(served.instance, requests)
    assert begun is not None
    return begun


def in_flight(served: Served) -> Any:
    return served.instance.state._process.process.in_flight


def test_a_batch_is_answered_when_it_is_finished(served: Served) -> None:
    calls = [call("identity"), call("identity", 3)]
    begun = begin(served, *calls)
    block_until(begun.has_ended, "the process replies")
    assert not any(each.answered for each in calls)
    begun.finish()
    assert [each.arrays["O"].shape for each in calls] == [(1, 2), (1, 3)]
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0
    assert not in_flight(served)


def test_its_socket_is_readable_at_its_end(served: Served) -> None:
    begun = begin(served, call("identity"))
    with begun.open_source() as source:
        assert source.recv(1, socket.MSG_PEEK)
    assert begun.has_ended()
    begun.finish()
    following = begin(served, call("identity"))
    assert following.source is begun.source
    following.finish()  # waits for the reply


def test_a_thread_may_wait_after_an_event_loop_has_watched(served: Served) -> None:
    begun = begin(served, call("identity"))
    block_until(begun.has_ended, "the process replies")
    begun.finish()
    with begun.open_source() as source:
        source.setblocking(False)  # as loops do, for all sockets of the connection's end
    assert served(call("identity", 200_000).infer)[0].arrays["O"].shape == (1, 200_000)


def test_an_error_of_the_model_is_its_answer(served: Served) -> None:
    refused = call("refuses")
    begun = begin(served, refused)
    block_until(begun.has_ended, "the process replies")
    begun.finish()
    assert refused.error == "missing"


def test_a_large_batch_is_not_begun(served: Served) -> None:
    """To copy its tensors would keep the event loop."""
    requests = [call("identity", 200_000)]
    assert served.backend.instance_begin(served.instance, requests) is None
    assert not in_flight(served)
    assert served(requests[0].infer)[0].arrays["O"].shape == (1, 200_000)


def test_the_end_of_the_process_fails_a_batch(served: Served) -> None:
    lost = call("identity")
    pid = served.instance.state.pid
    os.kill(pid, signal.SIGSTOP)
    begun = begin(served, lost)
    assert not begun.has_ended()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        block_until(begun.has_ended, "the process ends")
    begun.finish()
    assert lost.error.endswith("Stub process 'm_0_0' is not healthy. It ended with signal 9 (SIGKILL).")
    assert served(infer({"I": np.ones((1, 2), np.float32)}))[0].arrays["O"].shape == (1, 2)
    assert served.instance.state.pid != pid
