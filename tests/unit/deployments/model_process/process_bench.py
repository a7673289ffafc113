"""A Python model in a process of its own, started without Ray."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.channel.client import Channel
from app.transport.loops.thread import LoopThread
from app.transport.settings import TransportSettings
from deployments.model_process.host import ProcessReplica
from deployments.replica.replica import Place
from deployments.spec import Description
from tests.unit.deployments.served_model_bench import model_spec
from tests.waiting import block_until

CONFIG = """
name: "m"
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
MODEL = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

HOLDING = ctypes.PyDLL(None)  # its functions keep the interpreter's lock


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        responses = []
        for request in requests:
            value = float(request.inputs()[0].as_numpy()[0])
            {execute}
            out = pb_utils.Tensor("OUT", np.array([value + 1], np.float32))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses

    def finalize(self):
        {finalize}
"""


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition is true."""
    block_until(condition, "it takes too long", seconds)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class ProcessBench:
    """A replica in this process whose model runs in another one.

    Attributes:
        pauses: how often it was asked whether the process may be started again.
        loads: how often the model was loaded again.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = self.models = directory
        self.plane = LoopThread("test-data-plane")
        self.socket = "replica.sock"
        self.pauses = 0
        self.loads = 0
        self._loaded_pid = 0
        self.replica: ProcessReplica | None = None

    def write(self, execute: str = "pass", initialize: str = "pass", finalize: str = "pass") -> None:
        """Write the model, whose output is its input + 1."""
        folder = self.models / "m" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        source = MODEL.replace("{execute}", execute).replace("{initialize}", initialize)
        (folder / "model.py").write_text(source.replace("{finalize}", finalize))

    def start(self, seconds: float = 0.0, config: str = CONFIG, **transport: Any) -> Description:
        """Load the model; `seconds` is the limit of an execution."""
        (self.directory / "backends").mkdir(exist_ok=True)
        spec = model_spec(
            self.models,
            config,
            socket_directory=str(self.directory),
            transport=TransportSettings(**transport),
        )
        place = Place("node", str(self.directory / self.socket), "127.0.0.1")
        self.replica = ProcessReplica(spec, place, self.plane, self._pause, self._loaded, seconds)
        return self.replica.load(0)

    def load(self, seconds: float = 0.0, config: str = CONFIG, **transport: Any) -> ProcessReplica:
        """Load the model, which must not fail."""
        description = self.start(seconds, config, **transport)
        assert not description.error, description.error
        assert self.replica is not None
        return self.replica

    def submit(self, value: float = 1.0) -> "Future[InferResponse]":
        """Send a request."""
        assert self.replica is not None
        answer: Future[InferResponse] = Future()
        tensor = Tensor("IN", "FP32", (1,), np.array([value], np.float32).data)
        request = InferRequest("m", "", (tensor,))

        def settle(response: InferResponse) -> None:
            if response.final:
                answer.set_result(response)

        def send() -> None:
            assert self.replica is not None
            self.replica.send(request, settle)

        self.plane.loop.call_soon_threadsafe(send)
        return answer

    def infer(self, value: float = 1.0) -> float:
        """Return the model's output."""
        response = self.submit(value).result(20)
        assert response.failure is None, response.failure
        return float(np.frombuffer(response.outputs[0].data, np.float32)[0])

    async def control(self, verb: str, payload: Any) -> None:
        """Make a control call of the manager to the process."""
        assert self.replica is not None
        address, key = self.replica.addresses["unix"], self.replica._spec.key
        channel = await Channel.connect(address, key, TransportSettings(arena_bytes=0))
        await channel.control(verb, payload)
        channel.close()

    @property
    def pid(self) -> int:
        """The process's id; 0 when it does not run."""
        run = self.replica._run if self.replica is not None else None
        return 0 if run is None or run.ended.is_set() else run._started.pid

    def until_another(self, pid: int, seconds: float = 20.0) -> int:
        """Wait until the model is loaded by another process than this one; return its id."""
        until(lambda: self._loaded_pid not in (0, pid), seconds)
        return self._loaded_pid

    def servers(self) -> list[int]:
        """Fork servers of this directory."""
        return servers(self.directory)

    def close(self) -> None:
        """Unload the model, and end its fork server."""
        self.unload()
        end_servers(self.directory)

    def unload(self) -> None:
        """Unload the model."""
        if self.replica is not None:
            self.plane.call(self.replica._close(), 30)
        self.plane.stop()

    def _pause(self) -> int:
        self.pauses += 1
        return self.pauses

    def _loaded(self) -> None:
        self.loads += 1
        self._loaded_pid = self.pid


def servers(directory: Path) -> list[int]:
    """The fork servers that listen in a directory."""
    path = str(directory / "models")
    listening = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if path in line]
    inodes = {f"socket:[{fields[6]}]" for fields in listening if fields[3] == "00010000"}
    found = []
    for process in psutil.process_iter():
        try:
            held = {os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir()}
        except OSError:
            continue
        if held & inodes:
            found.append(process.pid)
    return found


def end_servers(directory: Path) -> None:
    for pid in servers(directory):
        os.kill(pid, signal.SIGKILL)
