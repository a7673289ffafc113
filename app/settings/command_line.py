"""Splits the words of a command line into flags and values, as getopt_long does."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.settings.deprecated import DEPRECATED
from app.settings.flag.errors import SettingsError
from app.settings.flag.flags import NEREID
from app.settings.load import known_names, suggestion
from app.settings.settings import SETTINGS

_TYPESET: Final = re.compile(r"^[‐-―−]|^-[‐-―−]|(?:^|=)[“”„‘’«»]|[“”„‘’«»]$")
_DASHES: Final = re.compile(r"(-*)(.*)", re.DOTALL)
_PLAIN: Final = str.maketrans({**dict.fromkeys("‐‑‒–—―−", "-"), **dict.fromkeys("“”„«»‘’", '"')})


def split(argv: Sequence[str], alone: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting with its value, and a word that belongs to no flag with "" as its name.

    `--flag=value` and `--flag value` are the same; a unique beginning of a flag is enough; after `--` there
    are no flags.

    Args:
        argv: the words, without the program's name.
        alone: further flags, which take no value.

    Raises:
        SettingsError: an unknown flag, or one without the value that it needs.
    """
    words = map(typed, argv)
    for word in words:
        if word == "--":
            yield from (("", rest) for rest in words)
        elif word == "-h" and "help" in alone:
            yield "help", ""
        elif not word.startswith("--"):
            yield "", word
        else:
            yield _flag(word, words, alone)


def typed(word: str) -> str:
    """Return a word as it is, unless an editor has put other quotes and dashes into a copied command.

    Raises:
        SettingsError: it begins with such a dash, or has such quotes around it or its value.
    """
    if not _TYPESET.search(word):
        return word
    dashes, rest = _DASHES.fullmatch(word.translate(_PLAIN)).groups()  # type: ignore[union-attr]
    meant = f"{'--' if dashes else ''}{rest}".replace('"', "").replace("'", "")
    raise SettingsError(f"'{word}' has quotes or dashes of a text, not of a shell; did you mean {meant} ?")


def collect(flags: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return the value of each setting: the last one, or the list of those of a flag that may be repeated."""
    args: dict[str, str | list[str]] = {}
    for name, value in flags:
        args[name] = [*args.get(name, []), value] if _repeats(name) else value
    return args


def spelling(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def _flag(word: str, words: Iterator[str], alone: Sequence[str]) -> tuple[str, str]:
    written, equals, value = word[2:].partition("=")
    name = _complete(written, alone)
    if name in alone:
        return name, ""
    if name in SETTINGS and SETTINGS[name].flag.bare:
        if equals:
            raise SettingsError(f"option '{spelling(name)}' doesn't allow an argument")
        return name, "true"
    if not equals:
        following = next(words, None)
        if following is None:
            raise SettingsError(f"option '{spelling(name)}' requires an argument")
        value = following
    if name in SETTINGS and SETTINGS[name].flag.words and ":" not in value:
        key, secret = next(words, None), next(words, None)
        if key is None or secret is None:
            raise SettingsError(f"option '{spelling(name)}' requires three arguments: APIS KEY VALUE")
        value = f"{value}:{key}={secret}"
    return name, value


def _is_own(name: str) -> bool:
    return name in SETTINGS and SETTINGS[name].heading == NEREID


def _complete(written: str, alone: Sequence[str]) -> str:
    """Return the name of the setting that a flag, or the unique beginning of one, stands for.

    What is unique for tritonserver stays so: its flags go before ours.
    """
    names = {spelling(name)[2:]: name for name in (*alone, *known_names())}
    matches = [flag for flag in names if flag.startswith(written)]
    matches = [flag for flag in matches if not _is_own(names[flag])] or matches
    if written in names or len(matches) == 1:
        return names[written if written in names else matches[0]]
    if matches:
        possible = " ".join(f"'--{flag}'" for flag in matches)
        raise SettingsError(f"option '--{written}' is ambiguous; possibilities: {possible}")
    raise SettingsError(f"unrecognized option '--{written}'{suggestion(written.replace('-', '_'), spelling)}")


def _repeats(name: str) -> bool:
    return name in DEPRECATED or (name in SETTINGS and SETTINGS[name].repeats)
