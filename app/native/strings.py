"""Strings by C, for a whole process: models and codecs split and join them in many places."""

from app.core.datatypes import STRINGS


def use_compiled_strings() -> None:
    """Have C split and join the strings of a process that is native (`app/native/choice.py`)."""
    from app.native.extension import join_strings, split_strings

    STRINGS.use_compiled(split_strings, join_strings)
