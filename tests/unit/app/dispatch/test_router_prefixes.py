"""The router with a model whose replicas keep the beginnings of prompts."""

import msgspec
import numpy as np
import pytest

from app.core.chat_templates import TextFacts
from app.core.tensors import Tensor
from app.dispatch.router import Router
from tests.unit.app.dispatch.test_router import apply, entry, handles, router, send, table  # noqa: F401
from tests.unit.app.routing.conftest import Sink, Start, request
from tests.waiting import until


@pytest.mark.parametrize("keeps", [True, False])
async def test_prompts_go_where_their_beginnings_are_kept(
    router: Router,  # noqa: F811
    start: Start,
    keeps: bool,
) -> None:
    replicas = await start("a", "b")
    kept = msgspec.structs.replace(entry("m:1"), text=TextFacts(keeps_prefixes=keeps))
    await apply(router, table(1, kept), "m:1", *replicas)
    await until(lambda: len(router.pools.find(router.resolve("m")).channels) == 2)  # type: ignore[union-attr]
    sink = Sink()
    for number in range(2):
        prompt = Tensor.from_array("text_input", np.array(["x" * 600 + str(number)], np.object_))
        send(router, msgspec.structs.replace(request(str(number)), inputs=(prompt,)), sink)
    await until(lambda: sum(each.taken for each in replicas) == 2)
    assert sorted(each.taken for each in replicas) == ([0, 2] if keeps else [1, 1])
