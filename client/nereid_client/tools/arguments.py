"""The command lines of programs."""

import argparse
from typing import Any


def command_parser(name: str, about: str, examples: str, **options: Any) -> argparse.ArgumentParser:
    """Return the parser of a program: what it is for, and examples, whose lines stay as they are.

    Args:
        options: more of `ArgumentParser`.
    """
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(name, description=about, epilog=examples, formatter_class=style, **options)
