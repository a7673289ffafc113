"""How far a run is: a bar on a terminal, plain lines where there is none."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Shown:
    """Shows progress on standard error. Use it as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._last = console, title, ""
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

    def tick(self, text: str, done: float, total: float) -> None:
        """Show it: seconds of at most so many seconds."""
        described = f"{self._title}, {text}"
        if self._bar is not None:
            self._bar.update(self._task, description=described, completed=done, total=total)
        elif text != self._last:
            self._console.print(f"{described}: up to {total:.0f} s")
        self._last = text

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)
