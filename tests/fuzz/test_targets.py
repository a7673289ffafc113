"""Every target on its seeds, on pieces of them and on seeds that went wrong, within bounds.

`make fuzz` looks further, guided by coverage.
"""

import random
import time
import tracemalloc

import pytest

from tests.fuzz.dense import DENSE
from tests.fuzz.mutation import mutate
from tests.fuzz.target import LIMIT
from tests.fuzz.targets import TARGETS

MUTATIONS = 300
SECONDS = 5.0
"""For one input, on the slowest machine: these take microseconds."""
MEMORY = 64 * LIMIT

NESTED = (b"[" * 5000, b'{"a":' * 5000, b"input {" * 5000, b"(" * 5000, b"\x0a\x7f" * 5000)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_what_becomes_of_them(name: str) -> None:
    target, chance = TARGETS[name], random.Random(name)
    for seed in target.seeds:
        target.check(seed)
    for count in range(MUTATIONS):
        target.check(mutate(target.seeds[count % len(target.seeds)], chance))


@pytest.mark.parametrize("name", TARGETS)
def test_bounded_time_and_memory(name: str) -> None:
    target = TARGETS[name]
    seed = target.seeds[0]
    for data in (*target.seeds, *NESTED, seed + seed * (LIMIT // max(1, len(seed))), bytes(LIMIT)):
        tracemalloc.start()
        began = time.process_time()
        target.check(data)
        spent, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert spent < SECONDS, data[:40]
        assert peak < MEMORY, data[:40]


@pytest.mark.parametrize(
    ("name", "number"), [(name, each) for name in DENSE for each in range(len(DENSE[name]))]
)
def test_dense_inputs_are_bounded(name: str, number: int) -> None:
    TARGETS[name].check(DENSE[name][number])


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_understood(name: str) -> None:
    """At least one seed passes its target whole, so that what is made of it gets past the first check."""
    target = TARGETS[name]

    def passes(seed: bytes) -> bool:
        try:
            target.run(seed)
        except target.errors:
            return False
        return True

    assert any(map(passes, target.seeds))
