"""Our own gRPC services, as the published files describe them."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from app.protocol.grpc import drift, rollout
from nereid_client.feedback import messages
from tests.server import ROOT


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("docs/operate/drift.proto", drift),
        ("docs/operate/rollout.proto", rollout),
        ("docs/use/feedback.proto", messages),
    ],
)
def test_the_published_proto_file_is_what_is_served(path: str, served: ModuleType) -> None:
    text = re.sub("//.*", "", Path(ROOT, path).read_text())
    written = {
        name: [(field, int(number)) for field, number in re.findall(r"(\w+) = (\d+);", body)]
        for name, body in re.findall(r"message (\w+) {(.*?)}", text, re.DOTALL)
    }
    file = served.FILE
    assert written == {one.name: [(f.name, f.number) for f in one.field] for one in file.message_type}
    assert re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text) == [
        (rpc.name, rpc.input_type[8:], rpc.output_type[8:]) for rpc in file.service[0].method
    ]
