"""Models that are served from directories outside the repositories, under names of their own."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, InferError, internal
from deployments.model_store import layout
from deployments.model_store.layout import CONFIG_FILE, ModelEntry
from deployments.model_store.model_files import read_config
from deployments.stored import KeptValues, StoredValues

PREFIX: Final = "registered/"
"""Begins the keys of the stored directories."""


class Place(NamedTuple):
    """A model's directory: one of `repository`, which has the other models of an ensemble too.

    Attributes:
        given: the directory that was registered: the model's, or the repository.
    """

    repository: Path
    folder: str
    given: str


class RegisteredModels:
    """The directories of registered models, by name. A store that does not answer is logged, and no failure.

    Args:
        values: keeps them beyond this process.
    """

    def __init__(self, values: StoredValues | None = None) -> None:
        self._values = KeptValues(values, "the directory", "the directories of registered models")
        self._places: dict[str, Place] = {}
        self._loaded: set[str] = set()

    def add(self, name: str, directory: str) -> None:
        """Register a model; blocks on the disk.

        A directory with a configuration, or with versions, is a model; another one has models, of which it is
        the ensemble or the only one (as tritonserver's src/sagemaker_server.cc has it).

        Raises:
            InferError: ALREADY_EXISTS in tritonserver's words; INVALID_ARG for a name that no model may have;
                INTERNAL for a directory without a model.
        """
        layout.check_model_name(name)
        place = _place(Path(directory))
        if any(name == taken or place[:2] == other[:2] for taken, other in self._places.items()):
            text = f"model repository '{place.repository}' has already been registered"
            raise InferError(ErrorCode.ALREADY_EXISTS, text)
        self._places[name] = place

    def discard(self, name: str) -> None:
        """Forget a model, if there is one of this name."""
        self._places.pop(name, None)

    async def keep(self, name: str) -> None:
        """Take a model for loaded, and let a manager that starts again know it."""
        place = self._places[name]
        self._loaded.add(name)
        await self._values.store(name, os.fsencode(f"{place.repository / place.folder}\0{place.given}"))

    async def forget(self, name: str) -> None:
        """Forget a model for good, if there is one of this name."""
        self._loaded.discard(name)
        if self._places.pop(name, None) is not None:
            await self._values.store(name, None)

    async def recover(self) -> None:
        """Read what an earlier manager has kept."""
        for name, kept in (await self._values.read()).items():
            directory, _, given = os.fsdecode(kept).partition("\0")
            path = Path(directory)
            self._places[name] = Place(path.parent, path.name, given or directory)
            self._loaded.add(name)

    async def retain(self, served: Iterable[str]) -> None:
        """Forget the other models: they were served by an earlier deployment of the server."""
        for name in self._places.keys() - set(served):
            await self.forget(name)

    def entries(self, namespaces: Mapping[Path, str]) -> list[ModelEntry]:
        """Return the models whose repositories are among those given."""
        return [entry for name in self._places for entry in self.find(name, namespaces)]

    @property
    def loaded(self) -> dict[str, str]:
        """The directories that were registered, by the names of models loaded from them."""
        return {name: place.given for name, place in self._places.items() if name in self._loaded}

    @property
    def repositories(self) -> list[Path]:
        """The directories that have the models."""
        return [place.repository for place in self._places.values()]

    def find(self, name: str, namespaces: Mapping[Path, str]) -> list[ModelEntry]:
        """Return the model of a name; nothing unless its repository is among those given."""
        place = self._places.get(name)
        if place is None or place.repository not in namespaces:
            return []
        found = layout.find({place.repository: namespaces[place.repository]}, place.folder)
        return [replace(entry, name=name) for entry in found]


def _place(directory: Path) -> Place:
    if not directory.is_dir():
        raise internal(f"failed to open directory {directory}: No such file or directory")
    if (directory / CONFIG_FILE).is_file() or any(each.name.isdigit() for each in directory.iterdir()):
        return Place(directory.parent, directory.name, str(directory))
    models = list(layout.scan({directory: ""}).values())
    ensembles = [model for model in models if _is_ensemble(model)] if len(models) > 1 else models
    if len(ensembles) != 1:
        raise internal(f"expected a model, or an ensemble with its models, in {directory}")
    return Place(directory, ensembles[0].name, str(directory))


def _is_ensemble(model: ModelEntry) -> bool:
    try:
        return bool(read_config(model).platform == "ensemble")
    except InferError:  # what is wrong with it is said when it is loaded
        return False
