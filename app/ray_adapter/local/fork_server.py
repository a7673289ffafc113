"""Forks the processes of replicas: `python fork_server.py DESCRIPTOR DRIVER PADDING`.

A worker of Ray 2.60 is a new program, which imports Ray, Serve and the server's packages: 1.2 s of processor
time, and 85 MiB of its own. This process imports them once; a fork of it becomes a worker in 0.1 s and shares
their pages. It has a single thread and no connection to Ray. It ends when the driver closes its end of stdin.
"""

import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final, NamedTuple

_BYTES: Final = 1 << 20
_REQUEST_S: Final = 10.0
_STDIN: Final = 0
_STANDARD: Final = (0, 1, 2)
_MODULES: Final = (
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.replica",
    "numpy",
)
_DEPLOYMENTS: Final = "nereid.deployments"


class Worker(NamedTuple):
    """The program of a worker: its arguments, environment, directory, OOM score and standard descriptors."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    oom_score: str
    descriptors: list[int]


def main(descriptor: int, driver: str) -> None:
    """Import what workers need; then fork one for each connection to a listening socket."""
    del sys.path[0]  # this file's directory
    # Ray's extension reads these two when it is imported. A worker ends with the process of the second, the
    # raylet by default. The driver is known earlier, and ends with it. Ray itself has workers without a job.
    fixed = {"RAY_JOB_ID": "f" * 8, "RAY_RAYLET_PID": driver}
    os.environ.update(fixed)
    _prepare()
    if not _ids_differ():
        sys.exit("a fork of this process would use the ids of another: replicas are programs of their own")
    worker = _forked(socket.socket(fileno=descriptor))
    worker.environment.update(fixed)
    _become(worker)


def _prepare() -> None:
    import gc

    # Else numpy's library would start threads, which a fork does not have. Ray sets it to 1 in most replicas.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _other_class_ids():
        for name in _MODULES:
            import_module(name)
    deployments = import_module(_DEPLOYMENTS)
    for name in deployments.CLASSES:
        getattr(deployments, name)
    # A worker may be one of a user's, with packages of the same names.
    import_module("nereid.internals").set_aside(_DEPLOYMENTS)
    import_module("ray._raylet").setproctitle("nereid: fork server")
    gc.collect()
    gc.freeze()  # a collection in a worker would write to every page that it shares


@contextmanager
def _other_class_ids() -> Iterator[None]:
    """Keep Ray's generator of ids without a state, which forks would share: their tasks had equal ids.

    It gets one with its first id. Ray draws one at imports, for each class of an actor.
    """
    actor: Any = import_module("ray.actor")
    drawn = actor.ActorClassID

    class OtherIds:
        @staticmethod
        def from_random() -> object:
            return drawn(os.urandom(drawn.size()))

    actor.ActorClassID = OtherIds
    try:
        yield
    finally:
        actor.ActorClassID = drawn


def _ids_differ() -> bool:
    """Whether two forks draw different ids; else Ray has drawn one in this process."""
    ids = import_module("ray").ObjectRef
    found = set()
    for _ in range(2):
        receiving, sending = os.pipe()
        if (child := os.fork()) == 0:
            os.write(sending, ids.from_random().binary())
            os._exit(0)
        os.close(sending)
        found.add(os.read(receiving, 64))
        os.close(receiving)
        os.waitpid(child, 0)
    return len(found) == 2


def _forked(listener: socket.socket) -> Worker:
    """Fork for each request; return in the forks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel lets go of workers that have ended
    while True:
        ready, _, _ = select.select([listener.fileno(), _STDIN], [], [])
        if _STDIN in ready:
            sys.exit()
        worker = None
        connection, _ = listener.accept()
        with connection, suppress(OSError, ValueError):  # without an answer, a worker starts by itself
            worker = _received(connection)
            if worker is not None:
                if os.fork() == 0:
                    listener.close()
                    return worker
                connection.send(b"\0")
        for descriptor in worker.descriptors if worker is not None else ():
            os.close(descriptor)


def _received(connection: socket.socket) -> Worker | None:
    """Read a request; return None when the connection ends without one.

    Raises:
        OSError: it takes too long.
        ValueError: it is none of `fork_client.py`.
    """
    connection.settimeout(_REQUEST_S)
    data, descriptors, _, _ = socket.recv_fds(connection, _BYTES, len(_STANDARD))
    while data and (more := connection.recv(_BYTES)):
        data += more
    if not data:
        return None
    directory, oom_score, number, *words = os.fsdecode(data).split("\0")
    arguments, variables = words[: int(number)], words[int(number) :]
    environment = {name: value for name, _, value in (each.partition("=") for each in variables)}
    return Worker(arguments, environment, directory, oom_score, descriptors)


def _become(worker: Worker) -> None:
    """Run the program of a worker in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)  # the raylet ends the process group of a worker that has ended
    for standard, descriptor in zip(_STANDARD, worker.descriptors, strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(worker.oom_score)
    os.chdir(worker.directory)
    os.environ.clear()
    os.environ.update(worker.environment)
    import_module(
        "numpy.random"
    ).seed()  # else all workers would draw the same numbers; `random` does it itself
    script = worker.arguments[0]
    sys.argv = worker.arguments
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
