"""JSON as protobuf's parser takes it, by which Triton reads configurations of load requests."""

import re
from typing import Final

_TOKENS: Final = re.compile(
    r""" "(?:[^"\\]|\\.)*(?:"|\\?\Z)        # a string
    | '(?:[^'\\]|\\.)*(?:'|\\?\Z)           # a string
    | (?<![\w$])[A-Za-z_$][\w$]*(?=\s*:)   # a name without quotes
    | ,(?=\s*[}\]])                        # a comma after the last element
    """,
    re.VERBOSE | re.DOTALL,
)
"""A string that does not end goes to the end of the text, so that the search is linear."""
_INSIDE: Final = re.compile(r'\\.|"', re.DOTALL)


def as_strict(text: str) -> str:
    """Return JSON that is strict: names and strings in double quotes, no comma after the last element."""
    return _TOKENS.sub(_strict_token, text)


def _strict_token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return token
    if token == ",":
        return ""
    if token[0] == "'":
        return '"' + _INSIDE.sub(_strict_character, token[1:-1]) + '"'
    return f'"{token}"'


def _strict_character(match: re.Match[str]) -> str:
    return {'"': r"\"", r"\'": "'"}.get(match[0], match[0])
