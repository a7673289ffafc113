"""What a backend says of itself: `BACKENDS` of a module `description` in its folder.

It is read without the backend and its framework, by all that lists, recognises, checks or configures, also
in processes of other environments; so such a module imports little.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.core.config.backend_facts import BackendFacts, ModelFormat
from backends.model_files import FileKind

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc

__all__ = ["BackendDescription", "FileKind", "ModelFormat"]

COMMON_FILE: Final = "model.py"


@dataclass(frozen=True, kw_only=True)
class BackendDescription(BackendFacts):
    """A backend.

    Attributes:
        backend: its class as "module:Class", the module in the description's folder. "" for a packaged one:
            `TritonPythonModel` of model.py there executes its models, by default in an environment of its
            own, that of requirements.txt there.
        python_file: the same for models whose `runtime` is model.py; "" for no such models.
        hosted: whether a process of another environment can execute it too; needs a requirements.txt.
        takes_library: whether libtriton_<name>.so goes before it.
        modules: titles of the modules that it needs, by their names.
        extra: the extra (pyproject.toml) that installs those.
        aliases: other names that people give it.
        kinds: the files that it serves: names in `backends/registry/file_kinds.py`, or kinds of its own.
        model_file: returns the name of a model's file, from its configuration and the names in the version's
            directory, where that takes more than `formats`.
        thread_parameter: the parameter of a model that says how many threads an instance computes with.
        folder, package: where the description is; set by the registry.
    """

    backend: str = ""
    python_file: str = ""
    hosted: bool = False
    takes_library: bool = True
    modules: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    aliases: tuple[str, ...] = ()
    kinds: tuple[str | FileKind, ...] = ()
    model_file: "Callable[[mc.ModelConfig, Collection[str]], str] | None" = None
    thread_parameter: str = ""
    folder: Path = Path()
    package: str = ""

    @property
    def packaged(self) -> bool:
        """Whether its models are executed by a `TritonPythonModel`, with an environment of its own."""
        return bool(self.package) and not self.backend

    @property
    def class_place(self) -> str:
        """Its class as "module:Class"."""
        return f"{self.package}.{self.backend}"

    @property
    def requirements(self) -> Path:
        """The file of the packages, all pinned, of an environment of its own."""
        return self.folder / "requirements.txt"

    def common_file(self, runtime: str) -> Path | None:
        """Return the file whose `TritonPythonModel` executes models of a `runtime`; None for others."""
        if self.packaged:
            return self.folder / COMMON_FILE
        return self.folder / self.python_file if self.python_file and runtime == COMMON_FILE else None
