"""Writes the dashboards beside it: `python -m cluster.grafana.generate`.

They are classic dashboards (schema 38), which Grafana 8 and later reads.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cluster.grafana.panels import FLEET, INSTANCES, MODEL, MODELS, NODE, Panel

Json = dict[str, Any]
HERE: Final = Path(__file__).parent
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
HEIGHT: Final = 8

DASHBOARDS: Final = {
    "nereid-fleet": ("Nereid: fleet", FLEET, ("instance", "model")),
    "nereid-model": ("Nereid: one model", MODEL, ("instance", "model", "version")),
    "nereid-node": ("Nereid: one node", NODE, ("instance", "model")),
}
SOURCES: Final = {
    "instance": "label_values(nereid_build_info, instance)",
    "model": f"label_values(nereid_model_state{{{INSTANCES}}}, model)",
    "version": f"label_values(nereid_model_state{{{MODELS}}}, version)",
}
"""What the values of a variable are."""


def dashboard(uid: str) -> Json:
    """Return a dashboard."""
    title, panels, variables = DASHBOARDS[uid]
    return {
        "uid": uid,
        "title": title,
        "tags": ["nereid"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "Nereid", "tags": ["nereid"], "keepTime": True}],
        "templating": {"list": [*_datasource(), *(_variable(name, uid) for name in variables)]},
        "panels": list(_placed(panels)),
    }


def _datasource() -> Iterator[Json]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, uid: str) -> Json:
    """Return a variable; the model of its own dashboard is one, elsewhere all are chosen."""
    one = name == uid.removeprefix("nereid-")
    everything = {} if one else {"current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": SOURCES[name], "refId": name},
        "definition": SOURCES[name],
        "refresh": 2,
        "sort": 1,
        "multi": not one,
        "includeAll": True,
        "allValue": ".*",
        **everything,
    }


def _placed(panels: Iterable[Panel]) -> Iterator[Json]:
    """Yield panels from left to right, row by row."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        wanted = 4 if panel.kind == "stat" else HEIGHT
        if x + panel.width > WIDTH or (x and wanted != height):
            x, y = 0, y + height
        height = wanted
        place = {"x": x, "y": y, "w": panel.width, "h": height}
        yield {"id": number, "gridPos": place, **_panel(panel)}
        x += panel.width


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "targets": [
            _target(chr(ord("A") + number), panel.kind, legend, expr)
            for number, (legend, expr) in enumerate(panel.queries.items())
        ],
        **_looks(panel),
    }


def _target(letter: str, kind: str, legend: str, expr: str) -> Json:
    forms = {"table": "table", "heatmap": "heatmap"}
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": legend,
        "format": forms.get(kind, "time_series"),
        "instant": kind == "table",
        "range": kind != "table",
    }


def _looks(panel: Panel) -> Json:
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True}
        return {"transformations": [{"id": "organize", "options": {"excludeByName": hidden}}]}
    if panel.kind == "heatmap":
        return {"options": {"calculate": False, "yAxis": {"unit": panel.unit}}}
    defaults: Json = {"unit": panel.unit}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults |= {"min": 0, "custom": {"fillOpacity": 30 if panel.stacked else 5, "stacking": stacking}}
    return {"fieldConfig": {"defaults": defaults, "overrides": []}}


def written(uid: str) -> str:
    """Return the file of a dashboard."""
    return json.dumps(dashboard(uid), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for uid in DASHBOARDS:
        (HERE / f"{uid}.json").write_text(written(uid))
