"""Where the backend of a model is looked for, and what is there; imports nothing of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from backends.description import COMMON_FILE
from backends.registry.descriptions import described, is_described
from backends.registry.entry_points import is_description, offered

LIBRARY: Final = re.compile(r"libtriton_[^/]*\.so")
"""Libraries that `runtime` may name. Triton takes any file; a load request may bring others than these."""


@dataclass(frozen=True)
class BackendPlace:
    """What a configuration says of its backend, and the folders in which that may be.

    Attributes:
        name: `backend` of the configuration.
        directory: the directory of custom backends; None for none.
        runtime: of the configuration.
        model_folders: the model's version directory and its own.
    """

    name: str
    directory: Path | None = None
    runtime: str = ""
    model_folders: Sequence[Path] = ()

    @classmethod
    def of(
        cls, config: mc.ModelConfig, directory: Path | None = None, model_folders: Sequence[Path] = ()
    ) -> "BackendPlace":
        """Return the place for a model's configuration."""
        return cls(config.backend, directory, config.runtime, model_folders)

    @property
    def folder(self) -> Path | None:
        """The backend's folder in the directory of custom backends, which may be absent."""
        return self.directory / self.name if self.directory and self.name else None

    @property
    def own_file(self) -> Path | None:
        """The backend.py there, if there is one."""
        return _present(self.folder, "backend.py")

    @property
    def library(self) -> Path | None:
        """The absolute path of its library, written in C or C++ for Triton; None for none.

        It is called `runtime`, or `libtriton_<name>.so`. The first in Triton's order: in the model's folders,
        and then in the backend's, unless there is a `backend.py`.
        """
        if not self.name or not described(self.name).takes_library or self.own_file:
            return None
        if self.runtime == COMMON_FILE or (self.names_library and not LIBRARY.fullmatch(self.runtime)):
            return None
        folders = (*self.model_folders, *([self.folder] if self.folder else ()))
        paths = (folder / (self.runtime or f"libtriton_{self.name}.so") for folder in folders)
        return next((path.absolute() for path in paths if path.is_file()), None)

    @property
    def names_library(self) -> bool:
        """Whether `runtime` names a library that is not the backend's usual one."""
        return self.runtime not in ("", COMMON_FILE, f"libtriton_{self.name}.so")

    @property
    def python_file(self) -> Path | None:
        """The absolute path of a Python-based backend's model.py; None for any other backend."""
        if self.own_file or self.library:
            return None
        if file := _present(self.folder, COMMON_FILE):
            return file.absolute()
        return None if _offers_class(self.name) else described(self.name).common_file(self.runtime)

    @property
    def is_custom(self) -> bool:
        """Whether a model, a backend directory or a package's class goes before what is described."""
        own = self.own_file or _present(self.folder, COMMON_FILE) or self.library
        return own is not None or _offers_class(self.name)

    @property
    def is_known(self) -> bool:
        """Whether there is a backend of this name."""
        return is_described(self.name) or self.is_custom

    @property
    def executes_python(self) -> bool:
        """Whether models are executed by a `TritonPythonModel`, theirs or the backend's."""
        return self.name == "python" or self.python_file is not None

    @property
    def may_call_models(self) -> bool:
        """Whether models may call others: those in Python, and libraries that name the functions."""
        library = self.library
        if library is None:
            return self.executes_python
        if not library.stat().st_size:
            return False
        with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return content.find(b"TRITONSERVER_Server") >= 0

    @property
    def shown(self) -> str:
        """The file or package that has the backend, for a person."""
        if file := self.own_file or self.library or self.python_file:
            return str(file)
        if entry_point := next(offered(self.name), None):
            return entry_point.value
        return str(described(self.name).folder) if is_described(self.name) else ""


def _present(folder: Path | None, name: str) -> Path | None:
    return folder / name if folder is not None and (folder / name).is_file() else None


def _offers_class(name: str) -> bool:
    return not all(map(is_description, offered(name)))
