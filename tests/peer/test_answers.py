"""Every request of the tables gets the same answer from Nereid and from a tritonserver beside it."""

import pytest

from tests.peer import grpc_requests, http_table
from tests.peer.answers import grpc_answer, http_answer
from tests.peer.conftest import Peer, Tritonserver
from tests.peer.grpc_requests import Call
from tests.peer.http_requests import Request
from tests.peer.known import FATAL, reason

REQUESTS: dict[str, Request | Call] = {
    **{f"http: {name}": request for name, request in http_table.table().items()},
    **{f"grpc: {name}": call for name, call in grpc_requests.table().items()},
}


def answer(peer: Peer, request: Request | Call) -> str:
    return (
        http_answer(peer.http, request) if isinstance(request, Request) else grpc_answer(peer.grpc, request)
    )


@pytest.mark.parametrize("name", REQUESTS)
def test_same_answer(name: str, theirs: Tritonserver, ours: Peer) -> None:
    theirs.revive()
    here = answer(ours, REQUESTS[name])
    if FATAL.match(name):
        assert not here.startswith("no answer")
        pytest.skip("ends the other server")
    there = answer(theirs.peer, REQUESTS[name])
    if here != there and reason(name):
        pytest.xfail(reason(name))
    assert here == there
