"""The dashboards of `cluster/grafana`, and the names in all of the shipped PromQL."""

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.grafana.generate import DASHBOARDS, written
from tests.expressions import EVERYWHERE, documented, expressions, labels, names, rules
from tests.server import ROOT
from tests.unit.cluster.test_prometheus import promtool, run

GRAFANA = ROOT / "cluster/grafana"


def read(uid: str) -> Any:
    return json.loads((GRAFANA / f"{uid}.json").read_text())


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_committed_dashboard_is_current(uid: str) -> None:
    assert (GRAFANA / f"{uid}.json").read_text() == written(uid), "python -m cluster.grafana.generate"


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_lie_apart(uid: str) -> None:
    places = [panel["gridPos"] for panel in read(uid)["panels"]]
    cells = [
        {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        for p in places
    ]
    assert not any(first & second for first, second in combinations(cells, 2))
    assert all(p["x"] + p["w"] <= 24 for p in places)
    assert all(first["y"] <= second["y"] for first, second in pairwise(places))


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_variables_are_declared(uid: str) -> None:
    document = read(uid)
    declared = [variable["name"] for variable in document["templating"]["list"]]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(document)))
    assert used == set(declared) and document["schemaVersion"] >= 38


@promtool
def test_every_expression_is_promql(tmp_path: Path) -> None:
    made = [{"record": f"e{n}", "expr": expr} for n, (_, expr) in enumerate(expressions())]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": made}]}))
    run("check", "rules", path)


def test_every_name_is_a_metric() -> None:
    known = documented().keys() | {rule["record"] for rule in rules() if "record" in rule} | {"up"}
    assert {where: found - known for where, expr in expressions() if (found := names(expr)) - known} == {}


def test_every_label_is_one_of_the_metric() -> None:
    unknown = []
    own = {name: found for name, (found, _) in documented().items()}
    for rule in (rule for rule in rules() if "record" in rule):
        own[rule["record"]] = set().union(*(used for _, used in labels(rule["expr"])))
    for where, expr in expressions():
        for metrics, used in labels(expr):
            known = EVERYWHERE.union(*(own.get(name, set()) for name in metrics))
            unknown += [(where, label) for label in sorted(used - known)]
    assert unknown == []


def test_names_are_found() -> None:
    expr = 'sum by (a, b) (rate(x_total{l=~"y_z|$v"}[5m] offset 1h)) / on (c) max(u:v:w) and absent(q) > 2e3'
    assert names(expr) == {"x_total", "u:v:w", "q"}
    assert list(labels(expr)) == [({"x_total"}, {"l"}), (names(expr), {"a", "b"}), (names(expr), {"c"})]
