"""What routes calls: it ends no connection."""

from unittest.mock import patch

import pytest

from app.native.choice import missing
from tests.unit.app.ingress.http2.planes import BLOCKS, Pair, call, message

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
FAILURES = (MemoryError(), KeyError("path"), ValueError("no"))


@pytest.mark.parametrize("error", FAILURES, ids=repr)
def test_a_call_that_cannot_be_routed_is_answered(error: Exception) -> None:
    pair = Pair()
    with patch("app.ingress.http2.call.not_a_call", side_effect=error):
        pair.receive(call(101, message(), BLOCKS[5]))
    assert all(b"the server failed to handle the request" in side.transport.written for side in pair.sides)
    before = [len(side.service.requests) for side in pair.sides]
    pair.receive(call(103, message(), BLOCKS[0]))
    assert [len(side.service.requests) for side in pair.sides] == [count + 1 for count in before]
    assert not pair.failed()
    pair.close()
