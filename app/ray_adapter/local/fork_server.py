"""Forks the processes of replicas: `python fork_server.py DESCRIPTOR DRIVER MODULE PADDING`.

A worker of Ray 2.60 is a new program, which imports Ray, Serve and the server's packages: 1.2 s of processor
time, and 85 MiB of its own. This process imports them once; a fork of it becomes a worker in 0.1 s and shares
their pages. It has a single thread and no connection to Ray. It ends when the driver closes its end of stdin.
"""

import os
import resource
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
_KEY_BYTES: Final = 32
_MODULES: Final = (
    "app.ray_adapter.local.lean_serve",
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.replica",
    "numpy",
    # What a replica imports when it is made.
    "anyio._backends._asyncio",
    "pydantic.v1",
    "ray._common.pydantic_compat",
    "ray._private.authentication.grpc_authentication_server_interceptor",
)


class Worker(NamedTuple):
    """The program of a worker: its arguments, environment and standard descriptors, and what it inherits.

    Attributes:
        blocked: numbers of the signals that it blocks.
        limits: of resources: number, soft and hard limit of each, one after the other.
    """

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    oom_score: str
    niceness: int
    blocked: list[int]
    limits: list[int]
    descriptors: list[int]


def main(descriptor: int, driver: str, module: str) -> None:
    """Import what workers need, by a module; then fork one for each connection to a listening socket."""
    del sys.path[0]  # this file's directory
    # Ray's extension reads these two when it is imported. A worker ends with the process of the second, the
    # raylet by default. The driver is known earlier, and ends with it. Ray itself has workers without a job.
    fixed = {"RAY_JOB_ID": "f" * 8, "RAY_RAYLET_PID": driver}
    os.environ.update(fixed)
    _prepare(module)
    if reason := harm():
        sys.exit(f"replicas are programs of their own: {reason}")
    worker = _forked(socket.socket(fileno=descriptor))
    worker.environment.update(fixed)
    _become(worker)


def _prepare(module: str) -> None:
    import gc

    # Else numpy's library would start threads, which a fork does not have. Ray sets it to 1 in most replicas.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import_module(module).prepare(_import_ray)
    import_module("ray._raylet").setproctitle("nereid: fork server")
    gc.collect()
    gc.freeze()  # a collection in a worker would write to every page that it shares


def _import_ray() -> None:
    with _other_class_ids():
        for name in _MODULES:
            import_module(name)


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


def harm() -> str:
    """Return what harm a fork of this process would come to; "" for none."""
    if not _ids_differ():
        return "a fork would use the ids of another"
    # Those of numpy's library have ended before the first fork.
    if len(os.listdir("/proc/self/task")) > 1:
        return "a lock may be held by a thread that a fork lacks"
    return ""


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
        descriptors: list[int] = []
        connection, _ = listener.accept()
        with connection, suppress(OSError, ValueError):  # without an answer, a worker starts by itself
            request = _received(connection, descriptors)
            if request:
                worker = _worker(request, descriptors)
                if os.fork() == 0:
                    listener.close()
                    return worker
                connection.send(b"\0")
        for descriptor in descriptors:
            os.close(descriptor)


def _received(connection: socket.socket, descriptors: list[int]) -> bytes:
    """Return a request, and add the descriptors that came with it; return nothing where it ends without one.

    Raises:
        OSError: it takes too long, or the client has given up.
    """
    connection.settimeout(_REQUEST_S)
    connection.sendall(b"\0")  # only now is it sent
    data, received, _, _ = socket.recv_fds(connection, _BYTES, len(_STANDARD))
    descriptors += received
    while data and (more := connection.recv(_BYTES)):
        data += more
    return data


def _worker(request: bytes, descriptors: list[int]) -> Worker:
    """Read a request.

    Raises:
        ValueError: it is none of `fork_client.py`.
    """
    directory, oom_score, niceness, blocked, limits, number, *words = os.fsdecode(request).split("\0")
    arguments, variables = words[: int(number)], words[int(number) :]
    environment = {name: value for name, _, value in (each.partition("=") for each in variables)}
    signals, resources = ([int(number) for number in text.split()] for text in (blocked, limits))
    if not arguments or len(descriptors) != len(_STANDARD):
        raise ValueError("a worker has a script and standard descriptors")
    inherited = oom_score, int(niceness), signals, resources
    return Worker(arguments, environment, directory, *inherited, descriptors)


def _become(worker: Worker) -> None:
    """Run the program of a worker in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)  # the raylet ends the process group of a worker that has ended
    for standard, descriptor in zip(_STANDARD, worker.descriptors, strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    _inherit(worker)
    os.chdir(worker.directory)
    os.environ.clear()
    os.environ.update(worker.environment)
    # Else all workers would draw the same numbers, and have the same key; `random` seeds itself.
    import_module("numpy.random").seed()
    import_module("multiprocessing").current_process().authkey = os.urandom(_KEY_BYTES)
    script = worker.arguments[0]
    sys.argv = worker.arguments
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def _inherit(worker: Worker) -> None:
    """Take over what a program would have from the raylet, as far as the kernel allows it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(worker.oom_score)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, worker.niceness)
    signal.pthread_sigmask(signal.SIG_SETMASK, worker.blocked)
    given = iter(worker.limits)
    for which, soft, hard in zip(given, given, given, strict=True):
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (soft, hard))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
