"""Names of files that a configuration, a file of a model or a client gives, as paths inside of a directory.

A path is opened as it is given, wherever its links lead: an operator's links share files between models, and
a path through `/proc/PID/root` means another place once it is resolved. What is refused is a name that leads
out of its directory by itself.
"""

import os
from pathlib import Path


def path_inside(root: str | Path, name: str, folder: str = "") -> Path | None:
    """Return the path of a named file; None when its name leads out of `root`.

    Args:
        root: the directory that it must be in.
        name: of the file, relative to `folder` or absolute. Each ".." takes the name before it away, also
            that of a link.
        folder: a directory of `root`, by its name there.
    """
    if "\0" in name:
        return None
    top = os.path.normpath(root)
    path = os.path.normpath(os.path.join(top, folder, name))
    return Path(root) / os.path.relpath(path, top) if Path(path).is_relative_to(top) else None
