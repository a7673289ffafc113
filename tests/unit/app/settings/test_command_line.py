"""Words of a command line that an editor, or a page of the web, has changed."""

import re

import pytest

from app.settings.flag.errors import SettingsError
from nereid.server.cli import main, parse


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("–http-port=9000", "--http-port=9000"),
        ("—http-port", "--http-port"),
        ("-–http-port", "--http-port"),
        ("−−http-port", "--http-port"),
        ("--model-repository=“/models”", "--model-repository=/models"),
        ("--id=‘a’", "--id=a"),
        ("“/models”", "/models"),
        ("«x»", "x"),
    ],
)
def test_what_an_editor_has_made_of_a_command_is_told(word: str, meant: str) -> None:
    text = f"'{word}' has quotes or dashes of a text, not of a shell; did you mean {meant} ?"
    with pytest.raises(SettingsError, match=f"^{re.escape(text)}$"):
        parse([word])
    with pytest.raises(SystemExit, match=f"^{re.escape(text)}$"):
        main(["check", word])


@pytest.mark.parametrize("word", ["--id=a–b", "--id=–", "--id=l’été", "--id='a'", "--id=模型"])
def test_other_characters_stay_as_they_are(word: str) -> None:
    assert parse(["--model-repository=/", word]).server.id == word.partition("=")[2]
