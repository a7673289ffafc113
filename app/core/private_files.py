"""Directories that only this user may enter."""

import os
import stat
import tempfile


def private_root(parent: str | None = None) -> str:
    """Return this user's directory for files of servers on a node; it is made if necessary.

    Args:
        parent: where it is; by default the directory for temporary files.

    Raises:
        PermissionError: another user made it, and might place links there for us to write through.
    """
    root = os.path.join(parent or tempfile.gettempdir(), f"nereid-{os.getuid()}")
    private_directory(root)
    return root


def private_directory(directory: str) -> None:
    """Make a directory that only this user may enter, and its missing parents.

    Raises:
        PermissionError: others may enter it, or it is a link.
    """
    parent = os.path.dirname(directory)
    if parent and not os.path.lexists(parent):
        private_directory(parent)  # os.makedirs would make it accessible to others
    try:
        os.mkdir(directory, mode=0o700)
    except FileExistsError:
        pass
    owner = os.lstat(directory)
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.geteuid() or stat.S_IMODE(owner.st_mode) & 0o077:
        raise PermissionError(f"'{directory}' must belong to this user alone (mode 0700)")
