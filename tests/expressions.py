"""The PromQL of `cluster/`, and the names in it.

There is no light parser of PromQL in pure Python: regular expressions find the names, promtool checks the
grammar.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.server import ROOT

DASHBOARDS: Final = sorted((ROOT / "cluster/grafana").glob("*.json"))
RULES: Final = ROOT / "cluster/prometheus/nereid.rules.yml"
METRICS: Final = ROOT / "docs/operate/metrics.md"
EVERYWHERE: Final = {"model", "version", "namespace", "instance", "job", "__name__"}
"""Labels of every sample, or of every sample of a model."""
_VALUES: Final = {
    "$__rate_interval": "5m",
    "$model": ".*",
    "$version": ".*",
    "$instance": ".*",
}
_SELECTOR: Final = re.compile(r"\b(?P<name>[a-zA-Z_:][\w:]*)\s*\{(?P<matchers>[^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NOISE: Final = re.compile(r'"[^"]*"|\[[^]]*\]|\{[^}]*\}')
_NAME: Final = re.compile(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()")
_WORDS: Final = {"and", "or", "unless", "offset", "bool"}
_DEFAULT: Final = ("", "`counter_latencies=true`")
_ROW: Final = re.compile(
    r"\| `(?P<name>\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<reported>[^|]*) \|"
)


def filled(expr: str) -> str:
    """Give the variables of a dashboard values."""
    for variable, value in _VALUES.items():
        expr = expr.replace(variable, value)
    return expr


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression of the dashboards, filled in, after a name for it."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']} {target['refId']}", filled(target["expr"])


def rules() -> list[dict[str, Any]]:
    """Return the recording rules and alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """Return every expression that is shipped, after a name for it."""
    named = [(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules()]
    return [*named, *dashboard_expressions()]


def names(expr: str) -> set[str]:
    """Return the names of metrics in an expression."""
    bare = _GROUPING.sub("", _NOISE.sub("", expr))
    return {name for name in _NAME.findall(bare) if name not in _WORDS}


def labels(expr: str) -> Iterator[tuple[set[str], set[str]]]:
    """Yield names and the labels that they are selected or grouped by."""
    for found in _SELECTOR.finditer(expr):
        matched = re.findall(r"(\w+)\s*[=!]", found["matchers"])
        yield {found["name"]}, set(matched)
    for grouped in _GROUPING.findall(expr):
        yield names(expr), {label for label in re.split(r"[\s,]+", grouped) if label}


def documented() -> dict[str, tuple[set[str], bool]]:
    """Return the metrics of `docs/operate/metrics.md`: their labels, and whether they depend on anything."""
    found = {}
    conditional = False
    for line in METRICS.read_text().splitlines():
        if line.startswith(("## ", "With `--")):
            conditional = not line.startswith(("## Models", "## Ingress"))
        if row := _ROW.match(line):
            own = {label.strip("` ") for label in row["labels"].split(",") if label.strip()}
            special = row["reported"].strip() not in _DEFAULT or "certificate" in row["name"]
            for suffix in _SUFFIXES.get(row["kind"], ("",)):
                found[row["name"] + suffix] = own, conditional or special
    return found


def documented_kinds() -> dict[str, str]:
    """Return the types of the metrics of `docs/operate/metrics.md`, by name; each has one row."""
    rows = [found for line in METRICS.read_text().splitlines() if (found := _ROW.match(line))]
    kinds = {row["name"]: row["kind"] for row in rows}
    assert len(kinds) == len(rows), "a metric has two rows"
    return kinds


_SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
