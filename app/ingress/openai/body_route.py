"""Routes whose bodies are JSON objects that name a model."""

from typing import Final

from app.core.system.tasks import InTurn
from app.ingress.compatible.route import TaskRoute
from app.ingress.openai.catalog import Catalog
from app.ingress.rest.context import RouteContext
from app.protocol.http.http1 import RequestHead
from app.protocol.openai.errors import invalid
from app.protocol.openai.fields import MAX_NAME, Fields, parse_body

BODIES: Final = InTurn("openai-bodies")
"""Reads the long bodies of this process."""


class BodyRoute(TaskRoute):
    """Reads bodies for the routes of inference.

    Args:
        context: of the front.
        catalog: has the models.
        head: of the requests.

    Attributes:
        catalog: as given.
        traceparent: of the requests; "" for none.
    """

    def __init__(self, context: RouteContext, catalog: Catalog, head: RequestHead) -> None:
        super().__init__(context)
        self.catalog = catalog
        self.traceparent = head.get(b"traceparent") or ""
        self._plain = (head.get(b"content-encoding") or "identity") == "identity"

    async def read(self, body: memoryview) -> tuple[str, Fields]:
        """Return the name of the model, and the fields of a body.

        Raises:
            OpenAIError: the body is none.
        """
        if not self._plain:
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        fields = Fields(await BODIES.by_size(len(body), parse_body, body, self.context.max_input_size))
        return fields.required_text("model", MAX_NAME), fields
