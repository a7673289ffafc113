"""Models as OpenAI's clients name them: by their names, by aliases, with an adapter behind a separator."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.text_models import Format, Task, TextModel, text_model
from app.core.errors import ErrorCode, InferError
from app.core.observability.generation import GenerationFigures
from app.ingress.service.interface import InferenceService
from app.protocol.openai.errors import invalid, unknown_model, wrong_task
from app.protocol.openai.models import describe_model
from app.routing.table import VersionEntry
from app.routing.waiting_room import resolve_loaded
from app.settings.openai import FORMATS, OpenAISettings

_ABSENT = (ErrorCode.NOT_FOUND, ErrorCode.PERMISSION_DENIED)


@lru_cache(4096)
def _recognised(config: bytes, preferred: Format | None) -> TextModel | None:
    """Recognise a model by its serialised configuration."""
    parsed = mc.ModelConfig.FromString(config)
    for kind in (preferred, None):
        try:
            return text_model(parsed, kind)
        except InferError:  # its tensors are of another format, or not known before it is loaded
            continue
    return None


class Found(NamedTuple):
    """The model of a request.

    Attributes:
        name: as the client wrote it.
        entry: the version that was resolved.
        text: what it is for.
        adapter: of LoRA; "" for none.
    """

    name: str
    entry: VersionEntry
    text: TextModel
    adapter: str = ""


class Catalog:
    """The models that are served.

    Args:
        service: has them.
        settings: of the front.
        generation: counts texts.
    """

    def __init__(
        self, service: InferenceService, settings: OpenAISettings, generation: GenerationFigures
    ) -> None:
        self.generation = generation
        self._service = service
        self._settings = settings

    async def find(self, name: str, task: Task) -> Found:
        """Return the model of a request, which is loaded first if it is idle.

        Raises:
            OpenAIError: it is unknown, or not for this task.
            InferError: see `resolve_loaded`.
        """
        try:
            entry, adapter = await resolve_loaded(self._service, name), ""
        except InferError as error:
            if error.code not in _ABSENT:
                raise
            entry, adapter = await self._otherwise(name, error)
        text = self._text(entry)
        if text is None or not self._is_for(text, task):
            raise wrong_task(name, task)
        return Found(name, entry, text, adapter)

    async def _otherwise(self, name: str, absent: InferError) -> tuple[VersionEntry, str]:
        """Return the model that has an alias, or that an adapter is of."""
        for entry in self._visible():
            text = self._text(entry)
            if text is not None and name in text.settings.aliases:
                return await resolve_loaded(self._service, entry.model), ""
        base, separator, adapter = name.rpartition(self._settings.lora_separator or "\0")
        if separator and base and adapter and any(entry.model == base for entry in self._visible()):
            entry = await resolve_loaded(self._service, base)
            if entry.text.adapters is not None and adapter not in entry.text.adapters:
                raise invalid(f"Unknown LoRA: {adapter}; for model: {name}", "model")
            return entry, adapter
        raise unknown_model(name) if absent.code is ErrorCode.NOT_FOUND else absent

    def _is_for(self, text: TextModel, task: Task) -> bool:
        templated = bool(self._settings.template.source) and not text.settings.tasks
        return task in text.tasks or (task == "chat" and templated and "completions" in text.tasks)

    def _text(self, entry: VersionEntry) -> TextModel | None:
        return _recognised(entry.config, FORMATS.get(self._settings.backend))

    def _visible(self) -> Iterator[VersionEntry]:
        """Return what requests without a version resolve to, by name, for the client that asks."""
        for name in sorted({entry.model for entry in self._service.served()}):
            try:
                yield self._service.resolve(name)
            except InferError as error:
                if (idle := getattr(error, "entry", None)) is not None:
                    yield idle

    def described(self) -> list[dict[str, Any]]:
        """Return all models, with their aliases."""
        found = []
        for entry in self._visible():
            text = self._text(entry)
            if text is None or text.settings.listed:
                found += self._described(entry, text)
        return found

    def describe(self, name: str) -> dict[str, Any]:
        """Return one model.

        Raises:
            OpenAIError: it is unknown.
        """
        for entry in self._visible():
            for each in self._described(entry, self._text(entry)):
                if each["id"] == name:
                    return each
        raise unknown_model(name)

    def _described(self, entry: VersionEntry, text: TextModel | None) -> list[dict[str, Any]]:
        """Return a model, its aliases, and its adapters where requests may name them."""
        created, facts, separator = int(entry.ready_at), entry.text, self._settings.lora_separator
        more = list(text.settings.aliases) if text is not None else []
        more += [f"{entry.model}{separator}{each}" for each in facts.adapters or () if separator]
        return [
            describe_model(entry.model, created, text, facts),
            *(describe_model(name, created, text, facts, entry.model) for name in more),
        ]
