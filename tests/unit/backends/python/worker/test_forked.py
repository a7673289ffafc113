"""Calls of processes that a model forks: real processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, Tensor
from backends.base import Request
from backends.python.api import pb_utils, server_api
from backends.python.api.calls import Calls
from backends.python.api.errors import TritonModelException
from backends.python.worker import forked
from tests.waiting import block_until

FORK = multiprocessing.get_context("fork")


class Doubling(Calls):
    """The rest of the server: every model doubles."""

    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
        if infer.model_name == "ends":
            os._exit(0)
        y = Tensor.from_array("y", infer.inputs[0].array() * 2)
        if decoupled:
            sink(InferResponse(outputs=(y,), final=False))
        sink(InferResponse(outputs=(y,)))
        return cancel_nothing

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        raise TritonModelException(f"failed to load '{name}'")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise TritonModelException(f"failed to unload '{name}'")

    def is_model_ready(self, name: str, version: str) -> bool:
        return name == "ready"


def doubled(size: int, model: str = "double", decoupled: bool = False) -> list[float]:
    """Call a model; return the first value of each of its responses."""
    array = np.full(size, size, np.float32)
    call = pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("x", array)], ["y"], model)
    found = call.exec(decoupled)
    responses = list(found) if decoupled else [found]
    return [float(each.output_tensors()[0].as_numpy()[0]) for each in responses]


def doubled_by_a_child(size: int) -> list[float]:
    with FORK.Pool(1) as pool:
        return pool.map(doubled, [size])[0]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forked.follow()
    monkeypatch.setattr(server_api._Installed, "api", Doubling("m"))
    yield
    block_until(lambda: not forked._forks.ends, "no process is left")


@pytest.mark.usefixtures("served")
def test_processes_of_a_pool_call_models() -> None:
    with FORK.Pool(2) as pool:
        assert pool.map(doubled, [1, 2, 100_000]) == [[2.0], [4.0], [200_000.0]]
        assert pool.apply(doubled, (3, "double", True)) == [6.0, 6.0]
        assert pool.map(pb_utils.is_model_ready, ["ready", "other"]) == [True, False]
    assert doubled(5) == [10.0]


@pytest.mark.usefixtures("served")
def test_processes_that_were_forked_while_the_model_loads_call_models_later() -> None:
    with server_api.no_calls("'initialize'"):
        pool = FORK.Pool(1)
    with pool:
        assert pool.map(doubled, [1]) == [[2.0]]


@pytest.mark.usefixtures("served")
def test_a_process_that_a_forked_one_forks_calls_models() -> None:
    with FORK.Pool(1) as pool:  # whose processes may not have any
        pool.map(allow_children, [0])
        assert pool.apply(doubled_by_a_child, (4,)) == [8.0]


def allow_children(_: int) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def end_the_parent(pipe: int) -> None:
    """Call a model in a process whose parent ends in that call; write what comes of it."""
    if os.fork():
        signal.pause()
    call = pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("x", np.ones(1))], ["y"], "ends")
    os.write(pipe, call.exec().error().message().encode())
    os._exit(0)


@pytest.mark.usefixtures("served")
def test_a_call_fails_when_the_process_of_the_model_ends() -> None:
    end, far_end = os.pipe()
    parent = FORK.Process(target=run_as_the_server, args=(far_end,))
    parent.start()
    os.close(far_end)
    with os.fdopen(end) as said:
        assert said.read() == "the process that forked this one has ended"
    parent.join()


def run_as_the_server(pipe: int) -> None:
    server_api.install(Doubling("m"))
    end_the_parent(pipe)


def test_without_a_server_a_forked_process_is_told_so() -> None:
    forked.follow()
    with FORK.Pool(1) as pool, pytest.raises(pb_utils.TritonModelException, match="BLS is only supported"):
        pool.map(doubled, [1])
