"""Documents of models that outlive the manager in the cluster's store, and the cluster in files."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from app.core.system.lone_thread import LoneThread
from deployments.rollout.storage.state_files import StateFiles
from deployments.stored import KeptValues, Store, StoredValues

logger = logging.getLogger(__name__)


class Document(Protocol):
    """A document of one model."""

    @property
    def name(self) -> str:
        """The model's identifier."""

    @property
    def changed_at(self) -> float:
        """When it last changed, Unix seconds: of two, the newer counts."""


_WRITE_S: Final = 5.0
_FILES_S: Final = 60.0
"""Time for all files to be read."""
_Document = TypeVar("_Document", bound=Document)


class Storage(NamedTuple):
    """The places where documents are kept.

    Attributes:
        store: the cluster's.
        files: outlive it; None for none.
        repositories: those of the server, of whose models the files are read.
    """

    store: Store
    files: StateFiles | None = None
    repositories: tuple[str, ...] = ()


class Documents(Generic[_Document]):
    """Documents of one kind, by model. A place that does not answer is logged, and no failure.

    Args:
        storage: where they are kept.
        kind: names the documents, in all places.
        made_of: their type.
        shared: returns whether a document counts that another server, which runs, keeps in these files.
    """

    def __init__(
        self,
        storage: Storage,
        kind: str,
        made_of: type[_Document],
        shared: Callable[[_Document], bool] = lambda _: True,
    ) -> None:
        values = StoredValues(storage.store, f"{kind}/")
        self._values = KeptValues(values, f"the {kind}", f"the stored documents of kind {kind}")
        self._files, self._repositories = storage.files, storage.repositories
        self._kind = kind
        self._type = made_of
        self._shared = shared
        self._failing = False
        # A disk that hangs has one thread of ours.
        self._writer = LoneThread(f"{kind} files")
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self, name: str, small: bytes, whole: bytes) -> bool:
        """Keep a document: a small form in the cluster's memory, the whole one in a file.

        Returns:
            Whether both have it.
        """
        async with self._locks[name]:
            stored = await self._values.store(name, small)
            return (self._files is None or await self._write_file(self._files, name, whole)) and stored

    async def _write_file(self, files: StateFiles, name: str, whole: bytes) -> bool:
        try:
            await self._writer.run(lambda: files.write(self._kind, name, whole), _WRITE_S)
        except Exception as error:
            if not self._failing:  # it would be said of each model
                text = "the %s of '%s' is not stored beyond a restart: %r"
                logger.warning(text, self._kind, name, error)
            self._failing = True
        else:
            self._failing = False
        return not self._failing

    async def read(self) -> dict[str, _Document]:
        """Return the documents, by model."""
        found: dict[str, _Document] = {}
        stored = [*filter(None, map(self._decoded, (await self._values.read()).values()))]
        for document in [*stored, *await self._read_files(patient=not stored)]:
            known = found.get(document.name)
            if known is None or document.changed_at > known.changed_at:
                found[document.name] = document
        return found

    async def _read_files(self, patient: bool) -> list[_Document]:
        files = self._files
        if files is None:
            return []
        try:
            async with asyncio.timeout(_FILES_S):
                documents = await asyncio.to_thread(self._read, files, False)
                if patient and not all(owned or self._shared(each) for each, owned in documents):
                    documents = await asyncio.to_thread(self._read, files, True)
        except Exception as error:
            logger.error("cannot read the files of kind %s: %r", self._kind, error)
            return []
        return [each for each, owned in documents if owned or self._shared(each)]

    def _read(self, files: StateFiles, patient: bool) -> list[tuple[_Document, bool]]:
        found = files.read(self._kind, self._repositories, patient)
        documents = ((self._decoded(text), owned) for text, owned in found)
        return [(each, owned) for each, owned in documents if each is not None]

    def _decoded(self, text: bytes) -> _Document | None:
        try:
            return msgspec.json.decode(text, type=self._type)
        except msgspec.MsgspecError as error:
            logger.warning("cannot read a stored document of kind %s: %s", self._kind, error)
            return None
