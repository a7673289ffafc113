"""The arbiter's decisions: resources, priorities, and that no instance starves."""

from collections import Counter

import pytest

from app.core.config.rate_limit import (
    ANY_DEVICE,
    GLOBAL,
    Demand,
    Resource,
    ResourceCounts,
    parse_resources,
    resource_limits,
)
from app.core.errors import ErrorCode, InferError
from deployments.rate_limiting.arbiter import Arbiter


def demand(priority: int = 1, device: int = GLOBAL, **counts: int) -> Demand:
    return Demand(tuple((device, name, count) for name, count in counts.items()), priority)


def arbiter(**demands: Demand) -> Arbiter[str]:
    return limited({}, **demands)


def limited(explicit: ResourceCounts, **demands: Demand) -> Arbiter[str]:
    made: Arbiter[str] = Arbiter(explicit)
    made.register(demands)
    return made


def grant(of: Arbiter[str], *requesting: str) -> list[str]:
    for key in requesting:
        of.request(key)
    return of.grant()


def permits(of: Arbiter[str], count: int, *keys: str) -> Counter[str]:
    """Count the permits of instances that always request one, over `count` executions."""
    had: Counter[str] = Counter()
    running = grant(of, *keys)
    while had.total() < count:
        key = running.pop(0)
        had[key] += 1
        of.release(key)
        running += grant(of, key)
    return had


def test_one_resource_allows_one_execution() -> None:
    both = arbiter(a=demand(r=1), b=demand(r=1))
    assert grant(both, "a", "b") == ["a"]
    assert grant(both, "a") == []
    both.release("a")
    assert both.grant() == ["b"]
    both.release("b")
    assert both.grant() == []


def test_default_limit_is_the_largest_demand() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1), c=demand(r=3))
    assert grant(some, "a", "b", "c") == ["a", "b"]
    some.release("a")
    assert some.grant() == []
    some.release("b")
    assert some.grant() == ["c"]


def test_limit_shrinks_when_the_largest_demand_leaves() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1), c=demand(r=2))
    some.unregister("c")
    assert grant(some, "a", "b") == ["a"]


def test_explicit_counts_are_limits() -> None:
    assert grant(limited({ANY_DEVICE: {"r": 2}}, a=demand(r=1), b=demand(r=1)), "a", "b") == ["a", "b"]


def test_devices_have_resources_of_their_own() -> None:
    some = arbiter(a=demand(device=0, r=1), b=demand(device=1, r=1), c=demand(device=0, r=1))
    assert grant(some, "a", "b", "c") == ["a", "b"]


def test_priority_two_gets_half_the_permits() -> None:
    assert permits(arbiter(a=demand(r=1), b=demand(2, r=1)), 300, "a", "b") == {"a": 200, "b": 100}
    some = arbiter(a=demand(r=1), b=demand(2, r=1), c=demand(4, r=1))
    had = permits(some, 700, "a", "b", "c")
    assert abs(had["a"] - 400) <= 2 and abs(had["b"] - 200) <= 2 and abs(had["c"] - 100) <= 2


def test_idle_instance_does_not_starve_others_later() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1))
    permits(some, 1000, "a")
    some.release("a")
    assert permits(some, 10, "a", "b") == {"a": 5, "b": 5}


def test_new_instance_does_not_starve_others() -> None:
    some = arbiter(a=demand(r=1))
    permits(some, 1000, "a")
    some.release("a")
    some.register({"b": demand(r=1)})
    assert permits(some, 10, "a", "b") == {"a": 5, "b": 5}


def test_small_demands_do_not_starve_a_large_one() -> None:
    some = arbiter(large=demand(r=4), **{f"small{n}": demand(r=1) for n in range(4)})
    had = permits(some, 500, "large", *(f"small{n}" for n in range(4)))
    assert had["large"] >= 95


def test_instances_with_other_needs_are_not_blocked() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1, s=1), c=demand(s=1), d=demand(t=1))
    assert grant(some, "a", "b", "c", "d") == ["a", "d"], "c must wait: b is before it"
    some.release("a")
    assert some.grant() == ["b"]
    some.release("b")
    assert some.grant() == ["c"]


def test_withdrawn_request_unblocks_the_queue() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=2), c=demand(r=1))
    assert grant(some, "a", "b", "c") == ["a"]
    some.release("b")
    assert some.grant() == ["c"]


def test_leaving_holder_frees_its_resources() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1))
    assert grant(some, "a", "b") == ["a"]
    some.unregister("a")
    some.unregister("a")
    assert some.grant() == ["b"]


def test_held_resources_can_be_restored() -> None:
    some = arbiter(a=demand(r=1), b=demand(r=1))
    some.restore("a")
    assert grant(some, "b") == []
    some.release("a")
    assert some.grant() == ["b"]


def test_too_small_limit_is_refused_without_effect() -> None:
    some = limited({ANY_DEVICE: {"r": 1}}, a=demand(r=1))
    with pytest.raises(InferError) as caught:
        some.register({"b": demand(r=2)})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        'Resource count for "r" is limited to 1 which will prevent scheduling of one or more model instances,'
        " the minimum required count is 2"
    )
    assert grant(some, "a") == ["a"]


EXPLICIT = parse_resources(["R1:10", "R2:5:0", "R2:8:1", "R3:2"])


def test_example_of_tritons_documentation() -> None:
    """From rate_limiter.md of Triton's documentation."""
    on = [Demand(((device, "R1", 1), (device, "R2", 1), (GLOBAL, "R3", 1))) for device in (0, 1)]
    assert resource_limits(on, EXPLICIT) == {
        Resource(0, "R1"): 10,
        Resource(0, "R2"): 5,
        Resource(1, "R1"): 10,
        Resource(1, "R2"): 8,
        Resource(GLOBAL, "R3"): 2,
    }


def test_resource_without_an_explicit_count_is_absent() -> None:
    with pytest.raises(InferError, match=r'"other" is limited to 0 .* required count is 1'):
        resource_limits([demand(other=1)], EXPLICIT)


def test_resource_cannot_be_global_and_of_a_device() -> None:
    with pytest.raises(InferError) as caught:
        resource_limits([demand(r=1), demand(device=0, r=1)], {})
    assert caught.value.message == (
        'Resource "r" is present as both global and device-specific resource in the model configuration.'
    )


def test_smaller_of_two_counts_applies() -> None:
    assert parse_resources(["r:3", "r:2", "r:4", "r:7:0"]) == {ANY_DEVICE: {"r": 2}, 0: {"r": 7}}


@pytest.mark.parametrize("entry", ["r", "r:", "r:x", ":1", "r:1:0:0", "r:-1", "r:1:x"])
def test_malformed_entries_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"--rate-limit-resource option format is .* Got "):
        parse_resources([entry])
