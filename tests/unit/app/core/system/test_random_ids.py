"""Identifiers differ, in all processes."""

import os

from app.core.system.random_ids import random_id


def test_identifiers_differ() -> None:
    found = {random_id() for _ in range(2000)}
    assert len(found) == 2000
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in found)


def test_a_fork_has_others() -> None:
    random_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, "".join(random_id() for _ in range(100)).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    ours = {random_id() for _ in range(100)}
    assert not ours & {theirs[at : at + 32] for at in range(0, 3200, 32)}
