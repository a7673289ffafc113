"""`nereid tape show`: rows of a tape as people, or programs, read them."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from app.core.encoding import to_json
from app.feedback.book import Joined
from app.tape.browsing import described, tensor_fields
from nereid.commands.columns import columns, printable
from nereid.commands.tape.books import Books
from nereid.commands.tape.listing import moment, size
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor
from nereid_client.tape.where import Where

_AT_ONCE: Final = 50
"""Rows of a table that are laid out together."""
_WIDTH: Final = 60
_VALUES: Final = 1000
"""Values of a tensor that are printed in full."""


def show(tape: Tape, where: Where, options: argparse.Namespace) -> int:
    """Print rows; return the exit status."""
    key = options.key
    chosen: Where = where if key is None else lambda row: row.key == key and where(row)
    full = options.json or key is not None
    rows = tape.rows(chosen, newest_first=True, bodies=full)
    most = 1 if key is not None else options.last or None
    with Books(tape.segments()) as books:
        if options.json:
            found = _print_json(islice(rows, most), books)
        elif key is not None:
            found = _print_full(islice(rows, most), books)
        else:
            found = _print_table(islice(rows, most), books)
    if not found:
        print(f"no row has the key '{key}'" if key is not None else "no row was chosen", file=sys.stderr)
    return 0 if found else 1


def _print_json(rows: Iterator[Row], books: Books) -> int:
    number = 0
    for row in rows:
        number += 1
        print(to_json(fields(row, books.of_row(row.key))).decode())
    return number


def fields(row: Row, said: Joined | None) -> dict[str, Any]:
    """Return a row as JSON has it; bytes that are no UTF-8 are escaped."""
    plain = {
        name: value
        for name, value in msgspec.structs.asdict(row).items()
        if name not in ("inputs", "responses")
    }
    responses = [
        {
            "offset_ms": each.offset_ns / 1e6,
            "outputs": [tensor_fields(tensor) for tensor in each.outputs],
            **({"code": each.code, "error": each.error} if each.code else {}),
        }
        for each in row.responses
    ]
    found = {"key": row.key, **plain, "latency_ms": row.latency_ns / 1e6}
    if said is not None:
        found["feedback"] = said._asdict()
    return {**found, "inputs": [tensor_fields(each) for each in row.inputs], "responses": responses}


def _print_table(rows: Iterator[Row], books: Books) -> int:
    number, head = 0, ["arrived", "key", "id", "model", "version", "ms", "why", "inputs", "answer", "score"]
    while some := list(islice(rows, _AT_ONCE)):
        number += len(some)
        print(columns([head, *(_cells(row, books.of_row(row.key)) for row in some)]))
    return number


def _cells(row: Row, said: Joined | None) -> list[str]:
    return [
        moment(row.arrived_ns),
        row.key,
        _short(row.id, 24),
        row.model,
        row.version,
        f"{row.latency_ns / 1e6:.2f}",
        row.reason,
        _short(" ".join(map(described, row.inputs))),
        _short(_answer(row)),
        "" if said is None else f"{said.score:g}",
    ]


def _answer(row: Row) -> str:
    failure = next((f"{each.code}: {each.error}" for each in row.responses if each.code), "")
    if failure:
        return failure
    many = f"{len(row.responses)} responses: " if len(row.responses) > 1 else ""
    return many + " ".join(described(tensor) for each in row.responses[:1] for tensor in each.outputs)


def _short(text: str, most: int = _WIDTH) -> str:
    shown = printable(text)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _print_full(rows: Iterator[Row], books: Books) -> int:
    number = 0
    for row in rows:
        number += 1
        for name, value in _facts(row, books.of_row(row.key)):
            print(f"{name:<14}{printable(value)}")
        for tensor in row.inputs:
            _print_tensor("input", tensor)
        for place, response in enumerate(row.responses, 1):
            failure = f"  {response.code}: {printable(response.error)}" if response.code else ""
            print(f"response {place}, after {response.offset_ns / 1e6:.3f} ms{failure}")
            for tensor in response.outputs:
                _print_tensor("output", tensor)
    return number


def _facts(row: Row, said: Joined | None) -> Iterator[tuple[str, str]]:
    yield "key", row.key
    yield "arrived", f"{moment(row.arrived_ns)}.{row.arrived_ns % 10**9 // 1000:06}"
    yield (
        "model",
        f"{row.model} version {row.version or '-'}"
        + (f" (asked for {row.asked_version})" if row.asked_version else ""),
    )
    optional = {
        "id": row.id,
        "sequence": f"{row.sequence_id}" if row.sequence_id else "",
        "token": row.token,
        "requested": ", ".join(row.requested),
        "parameters": to_json(row.parameters).decode() if row.parameters else "",
        "priority": str(row.priority) if row.priority else "",
        "timeout": f"{row.timeout_us} us" if row.timeout_us else "",
        "flags": ", ".join(row.flags),
        "not replayable": row.why_not,
    }
    yield from ((name, value) for name, value in optional.items() if value)
    yield "recorded", f"{row.reason}, probability {row.probability:g}"
    yield "latency", f"{row.latency_ns / 1e6:.3f} ms"
    if said is not None:
        times = f", the last of {said.records}" if said.records > 1 else ""
        yield "feedback", f"score {said.score:g}" + (f", right: {said.label}" if said.label else "") + times


def _print_tensor(kind: str, tensor: TapeTensor) -> None:
    print(f"  {kind} {described(tensor)}, {size(tensor.nbytes)}")
    if tensor.state != KEPT:
        return
    try:
        with np.printoptions(threshold=_VALUES, linewidth=110):
            text = str(tensor.array())
    except TapeError as error:
        text = str(error)
    for line in text.splitlines():
        print(f"    {printable(line)}")
