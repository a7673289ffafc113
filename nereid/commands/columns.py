"""Text for a terminal, as commands print it: in columns, and without what would command it."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def printable(text: str) -> str:
    """Return a text without what would command the terminal: names and reasons are others' texts."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
