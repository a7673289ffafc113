"""Draws the picture of the architecture, in a form for wide pages and one for telephones.

    python -m release.architecture docs

Boxes and lines stand below with their places in both forms. Colours are those of the reader's scheme,
light or dark.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

TITLE: Final = (
    "Clients ask an ingress, which sends requests straight to the processes of models and records some of "
    "them. The repository manager publishes routing tables, judges new versions by what was recorded, "
    "and has Ray Serve start processes."
)
SIZES: Final = {"architecture": (920, 384), "architecture_narrow": (400, 668)}
"""The file of each form, with its width and height."""
_COLOURS: Final = {
    "page": ("#ffffff", "#0d1418"),
    "text": ("#1f2328", "#e6edf3"),
    "small": ("#57606a", "#9aa7b2"),
    "plain": ("#f6f8fa #8c959f", "#161d23 #6e7b87"),
    "front": ("#ddf4ff #0969da", "#0c2d4a #4493f8"),
    "model": ("#dafbe1 #1a7f37", "#10331e #3fb950"),
    "control": ("#fff8c5 #9a6700", "#37290a #d29922"),
    "node": ("none #8c959f", "none #6e7b87"),
    "data": ("none #0969da", "none #4493f8"),
    "manage": ("none #9a6700", "none #d29922"),
}
"""Fill, and stroke if there is one, in light and in dark."""


class Box(NamedTuple):
    """Something that is there: its place in each form is left, top, width and height."""

    look: str
    title: str
    about: str
    wide: tuple[int, int, int, int]
    narrow: tuple[int, int, int, int]


class Line(NamedTuple):
    """Something that goes from one to another: a path in each form, and the middle of its label."""

    look: str
    wide: str
    narrow: str
    label: str = ""
    wide_at: tuple[int, int] = (0, 0)
    narrow_at: tuple[int, int] = (0, 0)


BOXES: Final = (
    Box("node", "", "one machine, or many", (240, 16, 664, 244), (8, 104, 384, 346)),
    Box("plain", "clients", "Triton's, OpenAI's", (16, 52, 168, 60), (8, 12, 184, 56)),
    Box("plain", "console, commands", "any browser; nereid ...", (16, 164, 168, 60), (208, 12, 184, 56)),
    Box("front", "ingress", "HTTP, gRPC; tokens, routes", (264, 52, 200, 60), (40, 140, 336, 56)),
    Box("front", "tape, drift, cost", "of real requests", (316, 178, 148, 60), (40, 256, 136, 60)),
    Box("model", "model, version 1", "95 % of its requests", (700, 32, 184, 56), (208, 224, 168, 56)),
    Box("model", "model, version 2", "5 %, being judged", (700, 110, 184, 56), (208, 296, 168, 56)),
    Box("model", "another model", "each in its own process", (700, 188, 184, 56), (208, 368, 168, 56)),
    Box("control", "repository manager", "loads, judges, scales", (264, 308, 200, 60), (8, 512, 184, 56)),
    Box("control", "Ray Serve", "places, restarts", (700, 308, 184, 60), (208, 512, 184, 56)),
    Box("plain", "model repository", "disk or cloud", (16, 308, 168, 60), (8, 604, 184, 56)),
)
LINES: Final = (
    Line("data", "M186 82H260", "M170 70V136"),
    Line("data", "M186 194C236 194 214 96 260 96", "M300 70V136"),
    Line("data", "M466 82C580 82 580 60 696 60", "M192 198V252H204"),
    Line(
        "data",
        "M466 82C580 82 580 138 696 138",
        "M192 198V324H204",
        "large tensors in|shared memory",
        (540, 214),
        (286, 442),
    ),
    Line("data", "M466 82C560 82 540 216 696 216", "M192 198V396H204"),
    Line("data", "M390 114V174", "M108 198V252"),
    Line("manage", "M284 308V116", "M24 512V168H36", "routing tables", (332, 288), (76, 496)),
    Line("manage", "M420 240V304", "M108 318V508", "evidence", (454, 288), (142, 380)),
    Line("manage", "M186 338H260", "M100 604V572"),
    Line("manage", "M466 338H696", "M194 540H204"),
    Line("manage", "M792 308V264", "M300 512V454", "starts them", (836, 288), (340, 496)),
)


def draw(form: str) -> str:
    """Return a form of the picture as SVG, which needs nothing else."""
    width, height = SIZES[form]
    narrow = form.endswith("narrow")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, Helvetica, Arial, sans-serif" font-size="15" '
        'text-anchor="middle" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(TITLE)}</title>',
        f"<style>{_rules(0)} @media (prefers-color-scheme: dark) {{ {_rules(1)} }} "
        ".small { font-size: 12.5px } .data { stroke-width: 2.5 } "
        ".manage, .node { stroke-dasharray: 5 4 }</style>",
        *(_head(look) for look in ("data", "manage")),
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        *(part for box in BOXES for part in _box(box, box.narrow if narrow else box.wide)),
        *(part for line in LINES for part in _line(line, narrow)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _rules(scheme: int) -> str:
    rules = []
    for name, colours in _COLOURS.items():
        fill, _, stroke = colours[scheme].partition(" ")
        rules.append(f".{name} {{ fill: {fill}; {f'stroke: {stroke}; ' * bool(stroke)}}}")
        if name in ("data", "manage"):
            rules.append(f".{name}-head {{ fill: {stroke} }}")
    return " ".join(rules)


def _head(look: str) -> str:
    return (
        f'<marker id="{look}" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" '
        f'markerWidth="11" markerHeight="11" orient="auto">'
        f'<path class="{look}-head" d="M0 0 10 5 0 10z"/></marker>'
    )


def _box(box: Box, place: tuple[int, int, int, int]) -> Iterator[str]:
    left, top, width, height = place
    yield f'<rect class="{box.look}" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    if not box.title:
        place_of = f'x="{left + 12}" y="{top + 20}" text-anchor="start"'
        yield f'<text class="small" {place_of}>{escape(box.about)}</text>'
        return
    middle, line = left + width // 2, top + height // 2
    yield f'<text class="text" x="{middle}" y="{line - 3}">{escape(box.title)}</text>'
    yield f'<text class="small" x="{middle}" y="{line + 16}">{escape(box.about)}</text>'


def _line(line: Line, narrow: bool) -> Iterator[str]:
    path = line.narrow if narrow else line.wide
    yield f'<path class="{line.look}" d="{path}" marker-end="url(#{line.look})"/>'
    x, y = line.narrow_at if narrow else line.wide_at
    texts = [line.label.replace("|", " ")] if narrow else line.label.split("|")
    for number, text in enumerate(filter(None, texts)):
        yield f'<text class="small" x="{x}" y="{y + 16 * number}">{escape(text)}</text>'


if __name__ == "__main__":
    for name in SIZES:
        Path(sys.argv[1], f"{name}.svg").write_text(draw(name))
