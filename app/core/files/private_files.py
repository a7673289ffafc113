"""Directories that only this user may enter."""

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

_TEMPORARY: Final = "/tmp"
SOCKET_ROOT_BYTES: Final = 30
"""Longest directory for sockets, whose paths may have 107 bytes: Ray 2.60 makes some 77 bytes below it."""


_LITTLE: Final = 1 << 20
"""Bytes with which nothing starts."""


def private_root(parent: str | None = None) -> Path:
    """Return this user's directory for files of servers on a node; it is made if necessary.

    Args:
        parent: where it is; by default the directory for temporary files.

    Raises:
        PermissionError: another user made it, and might place links there for us to write through.
    """
    root = Path(parent or tempfile.gettempdir(), f"nereid-{os.getuid()}")
    private_directory(root)
    return root


def private_directory(directory: str | Path) -> None:
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


def state_directory(kind: str, given: str = "") -> str:
    """Return this user's directory for what outlives a restart of the machine; it is made if necessary.

    Args:
        kind: its name.
        given: where it is; by default systemd's directory of the service's state, or else that of the user's
            programs. Where neither can be written, it is below `private_root`.

    Raises:
        OSError: it cannot be made.
    """
    home = os.path.expanduser(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    places = (given,) if given else (service, f"{home}/nereid")
    for place in filter(os.path.isabs, places):
        directory = os.path.join(place, kind)
        try:
            private_directory(directory)
        except OSError:
            if given:
                raise
        else:
            return directory
    directory = os.path.join(private_root(), "state", kind)
    private_directory(directory)
    return directory


def socket_root(parent: str | None = None) -> str:
    """Return a directory like `private_root`, whose path is short enough for sockets below it.

    It is another one where the directory for temporary files has a long path, as those of SLURM's jobs.

    Raises:
        OSError: there is none.
    """
    root = str(private_root(parent))
    if _is_short(root):
        return root
    for place in (_TEMPORARY, os.environ.get("XDG_RUNTIME_DIR", ""), "/var/tmp", "/dev/shm"):
        with suppress(OSError):
            if place and _is_short(found := str(private_root(place))):
                return found
    raise OSError(
        f"'{root}' is too long for sockets (at most {SOCKET_ROOT_BYTES} bytes), and no other directory for"
        " temporary files can be used: set TMPDIR"
    )


def short_path(directory: str, parent: str | None = None) -> str:
    """Return a path of a directory of `private_root(parent)` by which sockets in it can be reached: a link.

    Raises:
        OSError: as `socket_root`.
    """
    root = socket_root(parent)
    if root == str(private_root(parent)):
        return directory
    for old in _broken_links(root):
        os.unlink(old)
    link = os.path.join(root, f"to-{blake2b(os.fsencode(directory), digest_size=4).hexdigest()}")
    with suppress(FileExistsError):
        os.symlink(directory, link)
    return link


def _broken_links(root: str) -> Iterator[str]:
    """Yield links to directories of jobs that are over."""
    with os.scandir(root) as entries:
        yield from (each.path for each in entries if each.is_symlink() and not os.path.exists(each.path))


def _is_short(root: str) -> bool:
    return len(os.fsencode(root)) <= SOCKET_ROOT_BYTES


def require_home() -> None:
    """Give a user that the table of users does not have, as in a container, a home directory and a name.

    Else `~` is no path, or a directory of that name where the process happens to be, and `getpass` fails.
    """
    user = str(os.getuid())
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("USER", user)
        if not os.environ.get("HOME"):
            home = os.path.join(private_root(), "home")
            private_directory(home)
            os.environ["HOME"] = home


def full_disk(directory: str | None = None) -> str:
    """Return a sentence about the disk of this user's files when it is full; "" otherwise."""
    place = directory or tempfile.gettempdir()
    try:
        disk = os.statvfs(place)
    except OSError:  # it is not there any more
        return ""
    if disk.f_bavail * disk.f_frsize >= _LITTLE and (disk.f_favail or not disk.f_files):
        return ""
    what = "files can be made" if disk.f_bavail * disk.f_frsize >= _LITTLE else "space is left"
    return f"no {what} on the disk of '{place}', the directory for temporary files (TMPDIR)"
