"""Processor time by what processes are for, over their ends."""

from app.cost.samples import Key, ProcessMeter, ProcessSample

RAYLET, MODEL, CHILD = (10, 1), (20, 2), (30, 3)


def look(**times: tuple[int, int]) -> dict[Key, ProcessSample]:
    """Return a look at some of the processes, with their own ticks and those of ended children."""
    places = {
        "raylet": (RAYLET, 1, "raylet"),
        "model": (MODEL, 10, "model a:1"),
        "child": (CHILD, 20, "other"),
    }
    return {
        places[name][0]: ProcessSample(places[name][1], own, ended, places[name][2])
        for name, (own, ended) in times.items()
    }


def test_the_first_look_is_the_beginning() -> None:
    meter = ProcessMeter()
    assert meter.take(look(raylet=(500, 100), model=(7, 0))) == {}
    assert meter.take(look(raylet=(501, 100), model=(10, 0))) == {"raylet": 1, "model a:1": 3}


def test_a_new_process_counts_from_its_start() -> None:
    meter = ProcessMeter()
    meter.take(look(raylet=(5, 0)))
    assert meter.take(look(raylet=(5, 0), model=(40, 2))) == {"model a:1": 42}


def test_the_time_of_an_ended_process_is_its_own() -> None:
    meter = ProcessMeter()
    meter.take(look(raylet=(5, 0), model=(100, 0)))
    # It has used 4 more before its end, and its parent has waited for it.
    assert meter.take(look(raylet=(6, 104))) == {"raylet": 1, "model a:1": 4}


def test_a_tree_may_end_at_once() -> None:
    meter = ProcessMeter()
    meter.take(look(raylet=(5, 0), model=(100, 0), child=(50, 0)))
    assert meter.take(look(raylet=(5, 153))) == {"model a:1": 3}


def test_a_process_that_got_another_parent_before_its_end_is_counted_once() -> None:
    """Its parent was killed, and the one that collects orphans is not the parent's parent."""
    launcher, forker, host, model = (1, 1), (2, 1), (3, 1), (4, 1)
    meter = ProcessMeter()
    before = {
        launcher: ProcessSample(0, 5, 0, "server"),
        forker: ProcessSample(1, 5, 0, "fork server"),
        host: ProcessSample(2, 10, 0, "model a:1"),
        model: ProcessSample(3, 6700, 0, "model a:1"),
    }
    meter.take(before)
    after = {launcher: ProcessSample(0, 5, 6702, "server"), forker: ProcessSample(1, 5, 11, "fork server")}
    used = meter.take(after)
    assert sum(used.values()) == 3 and used["server"] == 2


def test_children_that_were_never_seen_are_their_parents() -> None:
    meter = ProcessMeter()
    meter.take(look(raylet=(5, 0), model=(100, 0)))
    assert meter.take(look(raylet=(5, 0), model=(100, 30))) == {"model a:1": 30}


def test_a_parent_that_ignores_the_ends_of_children_takes_nothing() -> None:
    meter = ProcessMeter()
    meter.take(look(raylet=(5, 0), model=(100, 0)))
    assert meter.take(look(raylet=(8, 0))) == {"raylet": 3}


def test_an_id_that_is_used_again_is_another_process() -> None:
    meter = ProcessMeter()
    meter.take({(20, 2): ProcessSample(1, 100, 0, "a")})
    assert meter.take({(20, 9): ProcessSample(1, 3, 0, "b")}) == {"b": 3}
