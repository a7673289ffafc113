"""The two parts of an error's text: Triton's, and what is behind it."""

from app.core.hints import MARK


def tritons(text: str) -> str:
    """The part that is Triton's, without white space at its end."""
    return text.partition(MARK)[0].rstrip()


def hint(text: str) -> str:
    """The part that says what to do; "" where there is none."""
    return text.partition(MARK)[2]
