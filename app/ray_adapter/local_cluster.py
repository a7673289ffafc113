"""A Ray cluster for this machine alone, whose files belong to this user."""

import os
import stat
from typing import Any, Final

from app.core.private_files import private_root

_OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


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
    os.umask(_OTHER_USERS)  # inherited by all processes of the cluster, for logs and sockets
    ray.init(_temp_dir=directory, **options)
