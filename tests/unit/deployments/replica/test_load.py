"""What a replica of a scaled model says of its load."""

from pathlib import Path

import pytest

from app.core.errors import FailureReason, InferError
from deployments.replica import load
from deployments.replica.load import LoadStatistics
from deployments.spec import LOAD, ReplicaLoad
from tests.unit.deployments.served_model_bench import BATCHING, CONFIG, Bench, request

SCALED = CONFIG + 'parameters { key: "max_replicas" value { string_value: "4" } }\n'


def reading(bench: Bench) -> ReplicaLoad:
    found: ReplicaLoad = bench.control(LOAD)
    return found


def test_integrals_grow_by_the_time_that_requests_execute_and_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.load(SCALED)
    held = bench.hold()
    queued, _ = bench.submit(request("a", rows=3))
    first = reading(bench)
    second = reading(bench)
    passed_ns = second.at_ns - first.at_ns
    assert second.executing_ns - first.executing_ns == passed_ns
    assert second.waiting_ns - first.waiting_ns == passed_ns
    assert (first.in_flight, first.arrived, first.executed, first.places) == (2, 2, 0, 1)
    assert not first.batches and first.oldest_ns > 0
    bench.backend.gate.set()
    assert held.result(60).failure is None and queued.result(60).failure is None
    last = reading(bench)
    assert (last.in_flight, last.arrived, last.executed, last.rows) == (0, 2, 2, 4)
    assert sum(last.waits.values()) == 2
    assert reading(bench).executing_ns == last.executing_ns >= second.executing_ns
    assert 0 < last.memory_bytes < last.free_bytes


def test_places_of_a_batching_model_are_rows_of_all_instances(bench: Bench) -> None:
    bench.load(SCALED + BATCHING + "instance_group [ { count: 2 kind: KIND_CPU } ]\n")
    found = reading(bench)
    assert (found.places, found.batches, found.sequences) == (16, True, 0)


def test_load_of_a_model_that_is_not_scaled_is_not_counted(bench: Bench) -> None:
    model = bench.load()
    assert not isinstance(model.statistics, LoadStatistics)
    with pytest.raises(InferError, match="model 'm' is not scaled by its load"):
        reading(bench)


def test_requests_that_were_refused_have_only_waited() -> None:
    counted = LoadStatistics()
    counted.record_failure(5, FailureReason.REJECTED)
    counted.record_failure(7, FailureReason.OTHER)
    counted.record_success(10, 4)
    assert (counted.waiting_ns, counted.executing_ns, counted.waits) == (9, 13, {3: 1})
    assert counted.succeeded == 1 and counted.counters.fail.count == 2
    assert counted.new_durations is None, "who appends to it alone would not count the rest"


def test_memory_is_that_of_the_container_where_it_has_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load, "_CGROUP", tmp_path)
    load._cgroup_limit.cache_clear()
    machine = load.free_memory()
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    load._cgroup_limit.cache_clear()
    assert load.free_memory() == 400
    (tmp_path / "memory.max").write_text("max\n")
    load._cgroup_limit.cache_clear()
    assert machine > 1 << 20 and load.free_memory() > 1 << 20
    load._cgroup_limit.cache_clear()
