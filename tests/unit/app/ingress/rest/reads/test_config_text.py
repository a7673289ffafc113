"""A configuration that somebody thinks of, beside the one that is served."""

import json

from app.ingress.rest.reads.config_text import as_text, check
from tests.unit.app.http_fakes import IDENTITY


def test_text_that_is_served_is_read_without_differences() -> None:
    found = check(as_text(IDENTITY), IDENTITY)
    assert (found["error"], found["differences"]) == ("", [])
    assert json.loads(found["config"])["max_batch_size"] == 8


def test_differences_are_those_of_lines() -> None:
    text = (
        as_text(IDENTITY).replace("max_batch_size: 8", "max_batch_size: 4").replace('name: "identity"\n', "")
    )
    found = check(text, IDENTITY)
    changed = [line for line in found["differences"] if line[0] in "+-"]
    assert changed == ["-max_batch_size: 8", "+max_batch_size: 4"]
    assert json.loads(found["config"])["name"] == "identity"


def test_error_has_its_place() -> None:
    found = check('name: "identity"\nmax_batchsize: 3', IDENTITY)
    assert (found["line"], found["column"], found["config"]) == (2, 1, "")
    assert "Did you mean 'max_batch_size'?" in found["error"]
    assert not found["error"].startswith(("line", "failed"))


def test_name_of_another_model_is_refused() -> None:
    found = check('name: "other"', IDENTITY)
    assert found["error"] == "the name is 'other', but this is the configuration of 'identity'"
    assert found["line"] == 0


def test_what_is_no_text_format_is_told() -> None:
    for text in ("}", "\0", "input [ " * 200, "a" * (5 << 20)):
        found = check(text, IDENTITY)
        assert found["error"] and not found["config"]
