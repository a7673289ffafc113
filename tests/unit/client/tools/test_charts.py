"""Charts show the figures that they are given."""

import re

from nereid_client.tools import charts


def test_intervals_of_series_lie_below_each_other_on_a_common_axis() -> None:
    rows = {
        "p50": {"stable": (1.0, 2.0, 4.0), "candidate": (2.0, 4.0, 5.0)},
        "p99": {"stable": (4.0, 4.5, 5.0)},
    }
    made = charts.intervals(rows, charts.linear([5.0], "ms"), {"budget": 3.0})
    circles = re.findall(r'<g class="(c\d)">.*?<circle cx="([\d.]+)" cy="(\d+)"', made)
    assert [color for color, *_ in circles] == ["c0", "c1", "c0"]
    assert float(circles[0][1]) < float(circles[1][1]) < float(circles[2][1])
    assert int(circles[0][2]) < int(circles[1][2]) < int(circles[2][2])
    assert "p50 candidate: 4 (2 to 5) ms" in made and "budget 3" in made
    assert '<span class="key c1">candidate</span>' in made
