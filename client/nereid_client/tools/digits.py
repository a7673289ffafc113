"""Figures as people read them: never with an exponent. Pure."""

from decimal import Decimal


def all_digits(value: float, most: int = 12) -> str:
    """Return a number with at most so many digits that count, without zeros at the end of its fraction."""
    return format(Decimal(f"{value:.{most}g}"), "f")


def four_digits(value: float) -> str:
    """Return what was measured: 12340, 123.4, 0.00001234."""
    return all_digits(value, 4)
