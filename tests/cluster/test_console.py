"""What a server prints when it starts."""

import re

import pytest

from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_banner_ends_the_start(server: Server) -> None:
    lines = server.output().splitlines()
    banner = next(number for number, line in enumerate(lines) if " models are ready after " in line)
    assert lines[0].startswith("Nereid ") and " is starting with the models of " in lines[0]
    assert "2 of 2 models are ready" in lines[banner]
    assert f"http://127.0.0.1:{server.http_port}" in "\n".join(lines[banner:])
    assert any(line.startswith("| victim ") for line in lines[:banner]), "the table comes before"


def test_messages_of_ray_are_in_a_file(server: Server) -> None:
    text = server.output()
    assert "ServeController" not in text and "ServeReplica" not in text
    path = re.search(r"Ray's log +(\S+)", text)
    assert path is not None
    with open(path[1]) as file:
        assert "ServeController" in file.read()
