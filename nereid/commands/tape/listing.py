"""`nereid tape ls`: what is on a tape."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from app.core.encoding import to_json
from app.core.feedback.figures import FeedbackFigures
from app.protocol.feedback import figures_fields
from nereid.commands.columns import columns
from nereid.commands.tape.books import Books
from nereid_client.tape.reader import Tape
from nereid_client.tape.segments import Segment


def show_segments(tape: Tape, as_json: bool) -> int:
    """Print the segments, models and feedback of a tape; return the exit status."""
    segments = tape.segments()
    with Books(segments) as books:
        figures = books.figures()
        said = books.unreadable
    if as_json:
        _print_json(segments, figures)
    else:
        print(columns([*_segment_rows(segments)]))
        print()
        print(columns([*_model_rows(segments, figures)]))
        for line in _said(figures):
            print(line)
    cut = {each.path: "its end is missing, and with it rows" for each in segments if not each.whole}
    for path, why in {**said, **cut}.items():
        print(f"{path}: {why}", file=sys.stderr)
    return 1 if tape.unreadable or said or cut else 0


def _print_json(segments: list[Segment], figures: Mapping[str, FeedbackFigures]) -> None:
    lines: list[dict[str, Any]] = [
        {
            "segment": str(each.path),
            "sealed": each.sealed,
            "rows": each.counted.rows,
            "bytes": each.counted.nbytes,
            "first": each.counted.first_ns / 1e9,
            "last": each.counted.last_ns / 1e9,
            "models": each.counted.models,
        }
        for each in segments
    ]
    lines += [{"feedback": figures_fields(model, each)} for model, each in sorted(figures.items())]
    for line in lines:
        print(to_json(line).decode())


def _segment_rows(segments: list[Segment]) -> Iterator[list[str]]:
    yield ["segment", "state", "rows", "size", "first", "last", "models"]
    for each in segments:
        counted = each.counted
        state = "sealed" if each.sealed else "open"
        times = moment(counted.first_ns), moment(counted.last_ns)
        names = ", ".join(sorted(counted.models))
        yield [
            f"{each.path.parent.name}/{each.path.name}",
            state,
            str(counted.rows),
            size(counted.nbytes),
            *times,
            names,
        ]


def _model_rows(segments: list[Segment], figures: Mapping[str, FeedbackFigures]) -> Iterator[list[str]]:
    rows: Counter[str] = Counter()
    for each in segments:
        rows.update(each.counted.models)
    yield ["model", "rows", "version", "scored", "score", "95 %"]
    for model in sorted({*rows, *figures}):
        versions = figures.get(model, FeedbackFigures()).versions
        yield from (
            _scored(model, rows[model], versions) if versions else [[model, str(rows[model]), "", "", "", ""]]
        )


def _scored(model: str, rows: int, versions: Mapping[str, Any]) -> Iterator[list[str]]:
    for number, (version, scores) in enumerate(versions.items()):
        mean = scores.mean
        first = [model, str(rows)] if not number else ["", ""]
        shown = ["", ""] if mean is None else [f"{mean.value:.4f}", f"{mean.low:.4f} to {mean.high:.4f}"]
        yield [*first, version, str(scores.number), *shown]


def _said(figures: Mapping[str, FeedbackFigures]) -> Iterator[str]:
    """Yield a line for the feedback of each model that did not count."""
    for model, each in sorted(figures.items()):
        counts = {"again": each.again, "unknown": each.unknown, "waiting": each.waiting, **each.unusable}
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        if told:
            yield f"feedback of {model}: {each.received} records, of these {told}"


def moment(ns: int) -> str:
    """Return a time of day of this machine; "" for none."""
    return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M:%S") if ns else ""


def size(nbytes: int) -> str:
    """Return a number of bytes as people read it."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
