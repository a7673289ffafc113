"""How far a run is: a bar on a terminal, now and then a line where there is none."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_S: Final = 10.0
"""Seconds between two lines of one stage."""


class Shown:
    """Shows progress on standard error. Use it as a context manager.

    Args:
        console: where.
        title: of the run.
        unit: of what is counted.
    """

    def __init__(self, console: Console, title: str, unit: str = "s") -> None:
        self._console, self._title, self._unit = console, title, unit
        self._stage, self._printed_at = "", 0.0
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(title, total=None)

    def __enter__(self) -> Shown:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tick(self, stage: str, done: float, total: float, note: str = "", unit: str = "") -> None:
        """Show so much of at most so much of a stage, and a note on it; `unit` if it is another one."""
        described = f"{self._title}, {stage}"
        if self._bar is not None:
            noted = f"{described}, {note}" if note else described
            self._bar.update(self._task, description=noted, completed=done, total=total)
        elif stage != self._stage or time.monotonic() >= self._printed_at + _LINE_S:
            self._stage, self._printed_at = stage, time.monotonic()
            counted = f"{described}: {done:.0f} of up to {total:.0f} {unit or self._unit}"
            self._console.print(f"{counted}, {note}" if note else counted, markup=False)
