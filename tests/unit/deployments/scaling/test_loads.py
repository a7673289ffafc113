"""What the replicas of a version report, as one sample."""

import msgspec

from deployments.scaling.loads import sample
from deployments.spec import GpuMemory, ReplicaLoad

SECOND = 1_000_000_000
FIRST = ReplicaLoad(
    at_ns=5 * SECOND,
    executing_ns=100 * SECOND,
    waiting_ns=50 * SECOND,
    arrived=1000,
    executed=900,
    rows=1800,
    waits={10: 900},
    in_flight=0,
    oldest_ns=0,
    places=2,
    batches=False,
    sequences=0,
    node="n",
    memory_bytes=100,
    free_bytes=1000,
)


def later(report: ReplicaLoad, **changes: object) -> ReplicaLoad:
    """The report half a second later."""
    return msgspec.structs.replace(report, **{"at_ns": report.at_ns + SECOND // 2, **changes})


def test_growth_of_the_integrals_is_the_mean_load_in_replicas() -> None:
    busy = later(
        FIRST,
        executing_ns=FIRST.executing_ns + SECOND,  # two at a time, for half a second
        waiting_ns=FIRST.waiting_ns + 3 * SECOND,
        arrived=1010,
        waits={10: 905, 25: 5},
        oldest_ns=30_000_000,
    )
    found = sample({"a": FIRST}, {"a": busy}, running=1, nodes=2)
    assert (found.executing, found.waiting) == (1.0, 3.0), "two places are one replica's"
    assert (found.waits, found.oldest_ms, found.active) == ({10: 5, 25: 5}, 30.0, True)
    assert (found.running, found.sequences, found.room) == (1, False, None)


def test_requests_of_several_rows_take_as_many_places_of_a_batch() -> None:
    before = msgspec.structs.replace(FIRST, batches=True, places=8)
    busy = later(before, executing_ns=before.executing_ns + SECOND // 2, executed=910, rows=1840)
    assert sample({"a": before}, {"a": busy}, 1, 1).executing == 0.5, "one request of four rows, of eight"


def test_replicas_that_gave_no_answer_count_as_the_others() -> None:
    busy = later(FIRST, executing_ns=FIRST.executing_ns + SECOND)
    found = sample({"a": FIRST, "gone": FIRST}, {"a": busy, "new": FIRST}, running=3, nodes=1)
    assert (found.running, found.executing) == (3, 3.0)
    assert sample({}, {"new": FIRST}, running=1, nodes=1).executing == 0.0


def test_version_is_active_with_requests_in_flight_or_new_ones() -> None:
    assert not sample({"a": FIRST}, {"a": later(FIRST)}, 1, 1).active
    assert sample({"a": FIRST}, {"a": later(FIRST, in_flight=1)}, 1, 1).active
    assert sample({"a": FIRST}, {"a": later(FIRST, arrived=1001)}, 1, 1).active
    assert sample({}, {"a": FIRST}, 1, 1).active, "requests that came before the first reading"


def test_sequences_of_any_replica_are_seen() -> None:
    assert sample({}, {"a": FIRST, "b": later(FIRST, sequences=1)}, 2, 1).sequences


def test_room_is_what_fits_into_the_memory_of_each_node() -> None:
    other = msgspec.structs.replace(FIRST, node="o", free_bytes=500, memory_bytes=200)
    assert sample({}, {"a": FIRST}, 1, 1).room == 9, "a part stays free"
    assert sample({}, {"a": FIRST, "b": other}, 2, 2).room == 4 + 2
    assert sample({}, {"a": FIRST}, 1, 2).room is None, "the other node's memory is not known"
    assert sample({}, {"a": msgspec.structs.replace(FIRST, memory_bytes=0)}, 1, 1).room is None
    assert sample({}, {}, 0, 1).room is None


def test_room_is_what_fits_into_the_gpus_that_a_replica_uses() -> None:
    def on(*gpus: tuple[int, int, int], **changes: object) -> ReplicaLoad:
        used = {number: GpuMemory(nbytes, free) for number, nbytes, free in gpus}
        return later(FIRST, gpus=used, **changes)

    assert sample({}, {"a": on((0, 100, 350))}, 1, 1).room == 3
    assert sample({}, {"a": on((0, 100, 350), (1, 100, 210))}, 1, 1).room == 1, "it needs both"
    assert sample({}, {"a": on((0, 100, 5000))}, 1, 1).room == 9, "the node's memory is less"
    other = on((0, 300, 700), node="o")
    assert sample({}, {"a": on((0, 100, 350)), "b": other}, 2, 2).room == 1 + 2, "by the largest"
    assert sample({}, {"a": on((0, 100, 50))}, 1, 1).room == 0
