"""Which graphs a configuration asks for, and which of them serves a batch."""

import pytest

from app.core.errors import ErrorCode, InferError
from backends.cuda.graphs import GraphSpec, GraphTable, graph_shapes, graph_specs
from tests.unit.backend_harness import config

PREFERRED = {"A": (4, 5), "B": (4,)}


def sizes(text: str) -> list[int]:
    return [spec.batch_size for spec in graph_specs(config(text))]


def graphs(specs: str, batch: int = 8) -> str:
    return f"max_batch_size: {batch} optimization {{ cuda {{ graphs: true {specs} }} }}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 8", []),
        ("max_batch_size: 8 optimization { cuda { graph_spec { batch_size: 2 } } }", []),
        (graphs("", 0), [0]),
        (graphs("", 10), [1, 2, 3, 4, 6, 8, 10]),
        (graphs("", 10) + "dynamic_batching { preferred_batch_size: [10] }", [1, 2, 3, 4, 6, 8, 10]),
        (graphs("", 10) + "dynamic_batching { preferred_batch_size: [4, 5] }", [1, 4, 5, 10]),
        (graphs("", 9) + "sequence_batching { oldest { preferred_batch_size: [3] } }", [1, 3, 9]),
        (graphs("graph_spec { batch_size: 8 } graph_spec { batch_size: 2 }"), [2, 8]),
    ],
)
def test_batch_sizes(text: str, expected: list[int]) -> None:
    assert sizes(text) == expected


BOUND = (
    "graph_spec {{ batch_size: 4 input {{ key: 'A' value {{ dim: [3, 4] }} }} graph_lower_bound {{ {} }} }}"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (graphs("graph_spec { batch_size: 9 }"), "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (graphs("graph_spec { }"), "graph spec expects 'batch_size' to be >= 1 and <= 8"),
        (
            graphs("graph_spec { batch_size: 1 }", 0),
            "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0",
        ),
        (
            graphs("graph_spec { batch_size: 2 graph_lower_bound { batch_size: 3 } }"),
            "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'",
        ),
        (graphs(BOUND.format("batch_size: 1")), "graph lower bound spec expects shape for input 'A'"),
        (
            graphs(BOUND.format("batch_size: 1 input { key: 'A' value { dim: [3] } }")),
            "graph lower bound spec expects to have '2' dimensions, got 1",
        ),
        (
            graphs(BOUND.format("batch_size: 1 input { key: 'A' value { dim: [-1, 4] } }")),
            "graph spec expects input 'A' to have dimension >= 0",
        ),
        (
            graphs(BOUND.format("batch_size: 1 input { key: 'A' value { dim: [3, 5] } }")),
            "graph lower bound spec expects input 'A' to have dimension <= 4",
        ),
    ],
)
def test_impossible_graphs_are_refused(text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        graph_specs(config(text))
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)


def test_shapes_are_the_configured_ones_or_those_the_profile_prefers() -> None:
    assert graph_shapes(GraphSpec(3, {"A": (7,)}, 3), PREFERRED) == {"A": (3, 7), "B": (3,)}
    assert graph_shapes(GraphSpec(3, {}, 3), PREFERRED) == {"A": (3, 5), "B": (3,)}
    assert graph_shapes(GraphSpec(0, {"A": (2, 7)}, 0), PREFERRED) == {"A": (2, 7), "B": (4,)}


def table(*specs: GraphSpec) -> GraphTable[int]:
    found: GraphTable[int] = GraphTable()
    for spec in specs:
        found.record(spec, {"A": (spec.batch_size, 5)}, lambda spec=spec: spec.batch_size)  # type: ignore[misc]
    return found


def test_find_prefers_the_exact_graph_then_the_smallest_that_covers() -> None:
    graphs = table(GraphSpec(2, {}, 2), GraphSpec(4, {}, 3), GraphSpec(8, {}, 1))
    found = {rows: graphs.find({"A": (rows, 5)}) for rows in range(1, 10)}
    assert {rows: one and one.graph for rows, one in found.items()} == {
        1: 8, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8, 9: None,
    }  # fmt: skip
    assert graphs.find({"A": (4, 6)}) is None


def test_a_padded_execution_is_cut() -> None:
    recorded = table(GraphSpec(8, {}, 1)).find({"A": (3, 5)})
    assert recorded is not None
    assert recorded.cut((8, 7), {"A": (3, 5)}) == (3, 7)
    assert recorded.cut((8, 7), {"A": (8, 5)}) == (8, 7)
    assert recorded.cut((2, 8), {"A": (3, 5)}) == (2, 8)


def test_equal_shapes_are_recorded_once() -> None:
    graphs = table(GraphSpec(2, {}, 2), GraphSpec(2, {}, 1))
    assert len(graphs) == 1
