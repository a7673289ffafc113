"""The rules and alerts of `cluster/prometheus`; promtool is in Debian's package `prometheus`."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.core.observability.alerts import DAY, Rule
from app.core.observability.alerts import RULES as RULES_OF_CONSOLE
from tests.server import ROOT
from tests.unit.cluster.alert_cases import CASES, FIRST_FAILURES, Case, Series

RULES: Final = ROOT / "cluster/prometheus/nereid.rules.yml"
PROMTOOL: Final = shutil.which("promtool")
TOLD_BY: Final = {
    **dict.fromkeys(("NereidSlowClients", "NereidConnectionsRefused", "NereidWaitingRoomFull"), "instance"),
    **dict.fromkeys(("NereidCertificateExpires", "NereidTapeDrops", "NereidTokenLimited"), "instance"),
    **dict.fromkeys(("NereidThrashing", "NereidDemandFailing"), "job"),
}
"""The label that tells the server of an alert, where it is not `model`."""
NOT_OF_CONSOLE: Final = {
    **dict.fromkeys(("NereidSlow", "NereidSlowly", "NereidMemoryGrows"), "looks back for hours"),
    **dict.fromkeys(
        ("NereidModelNotReady", "NereidModelUnavailable", "NereidModelFlapping"), "a page has states"
    ),
    **dict.fromkeys(("NereidCanaryFailing", "NereidCanarySlow"), "the page of the rollout has both versions"),
    **dict.fromkeys(("NereidAtMaximum", "NereidThrashing"), "needs no person at once"),
    "NereidDown": "every page says so",
}
"""Alerts of Prometheus alone, and why."""
promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def run(*arguments: str | Path) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def labelled(series: Series, instance: str) -> list[dict[str, str]]:
    """Give series the labels of a server's only model."""
    labels = ",".join(f'{label}="{instance}"' for label in ("instance", "model", "version"))
    found = []
    for name, values in series.items():
        own = name.removesuffix("}") + ("" if name.endswith("{}") else ",")
        job = "" if "job=" in own else f',job="{instance}"'
        found.append({"series": f"{own}{labels}{job}}}", "values": values})
    return found


def as_test(alert: str, case: Case) -> dict[str, Any]:
    """Write a case in promtool's form: the alert fires once, for the server with the fault."""
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    label = TOLD_BY.get(alert, "model")
    return {
        "name": alert,
        "interval": "1m",
        "input_series": [
            *labelled(case.faulty, "faulty"),
            *labelled(case.well, "well"),
            *labelled(case.other, "other"),
        ],
        "promql_expr_test": [
            {
                "expr": f"sum by ({label}) ({firing})",
                "eval_time": f"{case.minutes}m",
                "exp_samples": [{"labels": f'{{{label}="faulty"}}', "value": 1}],
            }
        ],
    }


def test_every_alert_has_a_case() -> None:
    assert sorted(alerts()) == sorted(CASES)


@pytest.mark.parametrize("rule", RULES_OF_CONSOLE, ids=lambda rule: rule.name)
def test_console_has_the_same_thresholds(rule: Rule) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = {each["alert"]: each for group in groups for each in group["rules"] if "alert" in each}
    records = {
        each["record"]: each["expr"] for group in groups for each in group["rules"] if "record" in each
    }
    found = rules[rule.name]
    expr = found["expr"]
    for name in re.findall(r"nereid:\w+:\w+", expr):
        expr += f" {records[name]}"
        for inner in re.findall(r"nereid:\w+:\w+", records[name]):
            expr += f" {records[inner]}"
    assert found["labels"]["severity"] == rule.severity
    assert all(metric in expr for metric in (*rule.metrics, *rule.over, *rule.per))
    limits = re.search(r"> ([0-9.]+)", expr) or re.search(r"== (1)", expr)
    if rule.reading == "since":
        assert f"- time() < {-rule.above / DAY:g} * {DAY:g}" in expr
    else:
        assert limits and float(limits[1]) in (rule.above, rule.above + 1), expr
    assert not rule.per or f"> {rule.least:g}" in expr
    assert not rule.within_s or f"[{rule.within_s / 60:g}m]" in expr
    assert rule.reading != "growth" or f"[{rule.within_s / 60:g}m] offset {2 * rule.within_s / 60:g}m" in expr


def test_console_has_every_alert_that_it_can_make() -> None:
    assert set(alerts()) - {rule.name for rule in RULES_OF_CONSOLE} == set(NOT_OF_CONSOLE)


def test_texts_name_no_instance_where_absent_leaves_none() -> None:
    found = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in found for rule in group["rules"] if "absent(" in rule["expr"]]
    assert rules
    for rule in rules:
        for text in rule.get("annotations", {}).values():
            assert "$labels.instance }}" not in text or text.startswith("{{ with $labels.instance }}")
            assert "$labels.instance" not in text or "{{ else }}" in text


def ways_to_find_servers() -> list[Any]:
    """The scrape configurations, one of which is no comment."""
    text = RULES.with_name("prometheus.yml").read_text().partition("scrape_configs:\n")[2]
    lines = [line.replace("# ", "", 1) for line in text.splitlines() if not re.match(r" *# (\d|With)", line)]
    found: list[Any] = yaml.safe_load("\n".join(lines))
    return found


@promtool
def test_prometheus_reads_every_way_to_find_servers(tmp_path: Path) -> None:
    run("check", "config", RULES.with_name("prometheus.yml"))
    ways = ways_to_find_servers()
    assert len(ways) == 3
    for way in ways:
        way.pop("kubernetes_sd_configs", None)  # which Debian leaves out of its build
        path = tmp_path / "prometheus.yml"
        path.write_text(yaml.safe_dump({"scrape_configs": [way]}))
        run("check", "config", "--syntax-only", path)


@promtool
def test_alerts_fire_at_a_fault_and_not_without(tmp_path: Path) -> None:
    tests = [as_test(alert, case) for alert, case in CASES.items()]
    tests += [as_test(alert, case) for alert, case in FIRST_FAILURES.items()]
    given = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(given))
    run("test", "rules", path)
