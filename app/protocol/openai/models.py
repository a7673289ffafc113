"""Models as OpenAI's clients list them. No I/O."""

from collections.abc import Iterable
from typing import Any, Final

from app.core.chat_templates import TextFacts
from app.core.config.text_models import TextModel

_OWNER: Final = "Triton Inference Server"


def describe_model(
    name: str, created: int, text: TextModel | None, facts: TextFacts, parent: str = ""
) -> dict[str, Any]:
    """Return a model.

    Args:
        name: of the model, an alias of it, or an adapter.
        created: when it became ready, in seconds since the epoch.
        text: what it is for; None for a model that has nothing to do with text.
        facts: further, of its files.
        parent: the model of an adapter or an alias.
    """
    found: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": _OWNER}
    if text is not None:
        found["tasks"] = list(text.tasks)
        if length := text.settings.max_model_len or facts.max_model_len:
            found["max_model_len"] = length
    if parent:
        found["parent"] = parent
    return found


def list_models(models: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return a list of models."""
    return {"object": "list", "data": list(models)}
