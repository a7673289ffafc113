"""The command lines of programs, and the numbers on them: each function reads one, or refuses it."""

import argparse
import math
from typing import Any


def command_parser(name: str, about: str, examples: str, **options: Any) -> argparse.ArgumentParser:
    """Return the parser of a program: what it is for, and examples, whose lines stay as they are.

    Args:
        options: more of `ArgumentParser`.
    """
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(name, description=about, epilog=examples, formatter_class=style, **options)


def count(text: str) -> int:
    """Read a whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 0 on")
    return int(text)


def positive(text: str) -> int:
    """Read a whole number above 0."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Read whole numbers from 0 on, as 1,4,16; return each once, the smallest first."""
    try:
        return tuple(sorted({count(part.strip()) for part in text.split(",")}))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers: give e.g. 1,4,16") from None


def port(text: str) -> int:
    """Read a port, or 0 for a free one."""
    found = count(text)
    if found > 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: the highest is 65535")
    return found


def above_zero(text: str) -> float:
    """Read a number above 0."""
    return _limited(text, _finite(text) > 0, "number above 0")


def from_zero(text: str) -> float:
    """Read a number from 0 on."""
    return _limited(text, _finite(text) >= 0, "number from 0 on")


def seconds(text: str) -> float:
    """Read a duration above 0."""
    return _limited(text, _finite(text) > 0, "number of seconds above 0")


def percent(text: str) -> float:
    """Read a number of percent from 0 on."""
    return _limited(text, _finite(text) >= 0, "number of percent from 0 on")


def share(text: str) -> float:
    """Read a number between 0 and 1."""
    return _limited(text, 0 < _finite(text) < 1, "number between 0 and 1")


def percentile(text: str) -> int:
    """Read a whole number from 0 to 100."""
    return int(_limited(text, text.isdecimal() and int(text) <= 100, "whole number from 0 to 100"))


def _limited(text: str, fits: bool, wanted: str) -> float:
    if not fits:
        raise argparse.ArgumentTypeError(f"'{text}' is no {wanted}")
    return float(text)


def _finite(text: str) -> float:
    """Return a number; NaN, which no limit takes, for what is none, or none that is finite."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
