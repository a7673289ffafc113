"""The server of the long suites and the time it gets."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.server import ROOT, Server

MODELS: Final = (
    *("accumulator", "add_one", "cached", "calls", "chain", "identity", "leaky", "reloaded", "running_total"),
    *("slow", "identity_all", "mock_llm", "repeat_int32"),
)
_REPOSITORIES: Final = ("tests/long/models", "tests/contract/models", "model_repository")


def arguments(ingress_replicas: int) -> list[str]:
    """The command line."""
    return [
        *(f"--model-repository={ROOT / path}" for path in _REPOSITORIES),
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in MODELS),
        f"--ingress-replicas={ingress_replicas}",
        "--allow-client-shm=true",
        "--cache-config=local,size=4194304",
    ]


@contextmanager
def started(ingress_replicas: int) -> Iterator[tuple[Server, Path]]:
    """A server with the models of the mix, and the directory that it has for files of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    # A short path, for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private:
        log = Path(os.environ.get("LONG_LOG") or Path(private, "server.log"))
        server = Server(arguments(ingress_replicas), log, {"TMPDIR": private}).start()
        try:
            yield server, Path(private)
        finally:
            if not server.exited():
                server.stop()


def say(line: str) -> None:
    """Print at once."""
    print(line)
    sys.stdout.flush()
