"""Pauses before something that has failed is tried again."""


def growing_pause(failures: int, first_s: float, longest_s: float) -> float:
    """Return the seconds after so many failures in a row: none after no failure, then doubled each time."""
    return min(first_s * 2.0 ** min(failures - 1, 16), longest_s) if failures > 0 else 0.0
