"""A Ray cluster for this machine alone, whose files belong to this user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from app.core.private_files import private_root


def start_cluster(**options: Any) -> None:
    """Start Ray with its files below this user's private directory, and connect to it.

    Args:
        options: options of `ray.init`.

    Raises:
        OSError: the directory cannot be made, or others may enter it.
        Exception: whatever `ray.init` raises.
    """
    import ray

    # Ray 2.60 gives directories of a session mode 0777 whenever a worker starts, whatever the umask
    # (`try_to_create_directory` in ray/_common/utils.py): only the directory above them keeps others out.
    directory = os.path.join(private_root(os.environ.get("RAY_TMPDIR")), "ray")
    os.umask(0o077)  # inherited by all processes of the cluster, for logs and sockets
    with _own_sessions():
        ray.init(_temp_dir=directory, **options)


@contextmanager
def _own_sessions() -> Iterator[None]:
    """Start processes of Ray in sessions of their own."""
    # A signal to the server's process group would end them before the server has drained.
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, start_new_session=True)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
