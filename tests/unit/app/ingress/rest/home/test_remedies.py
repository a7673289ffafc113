"""What the page says about states and their reasons."""

import pytest

from app.ingress.rest.home.remedies import explained


@pytest.mark.parametrize(
    ("state", "reason", "shown", "remedy"),
    [
        ("READY", "", "", ""),
        ("READY", "2 of 4 replicas", "2 of 4 replicas", ""),
        ("READY", "idle", "Idle", "the first request loads it"),
        ("UNAVAILABLE", "unloaded", "unloaded", "/load"),
        ("", "", "never loaded", "/load"),
        ("UNAVAILABLE", "Internal: ModuleNotFoundError: No module named 'x'", "'x'", "requirements.txt"),
        ("UNAVAILABLE", "bad name. Hint: rename the directory", "bad name.", "Rename the directory"),
        ("UNAVAILABLE", "CUDA out of memory", "CUDA out of memory", "instance_group"),
        ("UNAVAILABLE", "ensemble depends on 'x' which has no loaded version.", "'x'", "it depends on"),
        ("UNAVAILABLE", "something else", "something else", "nereid check"),
        ("UNKNOWN", "Error parsing text-format: 3:1", "3:1", "config.pbtxt"),
        ("LOADING", "", "", ""),
    ],
)
def test_reason_has_a_remedy(state: str, reason: str, shown: str, remedy: str) -> None:
    told, done = explained(state, reason)
    assert shown in told and remedy in done
    assert bool(told) == bool(shown) and bool(done) == bool(remedy)
