"""What routes a step fails in a way of its own: the request ends, and its steps in flight are cancelled."""

import pytest

from app.core.errors import ErrorCode
from app.core.inference import Call, Sink
from app.core.tensors import InferRequest
from app.routing.table import VersionEntry
from tests.unit.ensembles import BRANCHES, CHAIN, Models, model, tensor, turn


class BrokenModels(Models):
    """Cannot send requests to one of the models."""

    broken = ""

    def submit(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if found.name == self.broken:
            raise RuntimeError("no way there")
        return super().submit(found, request, sink)


@pytest.mark.parametrize("broken", ["a", "b"])
async def test_a_step_that_cannot_be_sent_ends_the_request(broken: str) -> None:
    models = BrokenModels(e=CHAIN, a=model(), b=model())
    models.broken = broken
    models.infer(tensor())
    if broken == "b":
        models.take("a").answer(tensor("y"))
    await turn()
    (response,) = models.responses
    assert response.final and response.failure is not None
    assert (response.failure.code, models.error) == (ErrorCode.INTERNAL, "in ensemble 'e', no way there")


async def test_steps_beside_one_that_cannot_be_sent_are_cancelled() -> None:
    models = BrokenModels(e=BRANCHES, a=model(), b=model(), c=model("l r"))
    models.broken = "b"
    models.infer(tensor())
    await turn()
    assert models.take("a").cancelled and len(models.responses) == 1
