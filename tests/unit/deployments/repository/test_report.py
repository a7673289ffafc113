"""The table of models that the log of a start shows."""

from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from deployments.repository.report import status_table


def test_table_of_the_start() -> None:
    table = RoutingTable(
        1,
        True,
        (
            VersionEntry("simple", 10, ModelState.READY),
            VersionEntry("simple", 2, ModelState.UNAVAILABLE, "Internal: no such file"),
            VersionEntry("bad", NO_VERSION, ModelState.UNAVAILABLE, "Internal: unreadable"),
        ),
    )
    assert status_table(table).splitlines() == [
        "+--------+---------+-------------------------------------+",
        "| Model  | Version | Status                              |",
        "+--------+---------+-------------------------------------+",
        "| bad    |         | UNAVAILABLE: Internal: unreadable   |",
        "| simple | 2       | UNAVAILABLE: Internal: no such file |",
        "| simple | 10      | READY                               |",
        "+--------+---------+-------------------------------------+",
    ]


def test_table_of_the_start_without_models() -> None:
    assert status_table(RoutingTable()).splitlines()[1] == "| Model | Version | Status |"
