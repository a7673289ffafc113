"""Drift over HTTP and gRPC, as the published file describes it."""

import re
from pathlib import Path

from app.protocol.grpc import drift as messages
from tests.server import ROOT


def test_the_published_proto_file_is_what_is_served() -> None:
    text = re.sub("//.*", "", Path(ROOT, "docs/operate/drift.proto").read_text())
    written = {
        name: [(field, int(number)) for field, number in re.findall(r"(\w+) = (\d+);", body)]
        for name, body in re.findall(r"message (\w+) {(.*?)}", text, re.DOTALL)
    }
    served = {one.name: [(f.name, f.number) for f in one.field] for one in messages.FILE.message_type}
    assert written == served
    assert re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text) == [
        (rpc.name, rpc.input_type[8:], rpc.output_type[8:]) for rpc in messages.FILE.service[0].method
    ]
