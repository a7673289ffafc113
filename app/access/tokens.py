"""Tokens of clients: the file's format, and what a token permits. No I/O.

A file has one JSON object a line; empty lines, and those that begin with #, are comments. It has the hashes
of the tokens, never the tokens themselves. A plain SHA-256 suffices for them: it can be reversed only by
trying, and a token is 256 random bits.
"""

import re
import secrets
import string
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Annotated as A
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from app.core.cost.budgets import Budget, parse_budget

Scope = Literal["infer", "manage", "metrics", "feedback"]
"""What a token may be used for."""

SCOPES: Final[tuple[str, ...]] = get_args(Scope)
ANONYMOUS: Final = "anonymous"
"""The name of clients without a token."""
OTHERS: Final = "other"
"""The name of tokens that are not counted separately."""
_PREFIX: Final = "nereid_"
"""By which people, and tools that search for leaked secrets, recognise a token."""
_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_RATE: Final = re.compile(r"[1-9][0-9]{0,8}/[smh]")


class Rate(NamedTuple):
    """At most `inferences` in `period` seconds."""

    inferences: int
    period: float


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rights of the holder of a token.

    Attributes:
        name: by which people, logs and metrics call it.
        sha256: hash of the token, in hexadecimal digits.
        scope: what it may be used for.
        models: patterns of the names of models, as a shell's: `*`, `?` and `[...]`.
        rate: inferences, as `100/s`, `100/m` or `100/h`; "" for no limit.
        concurrency: inferences in flight; 0 for no limit.
        budget: what it may consume, see `parse_budget`; "" for no limit.
    """

    name: str
    sha256: A[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scope: A[tuple[Scope, ...], msgspec.Meta(min_length=1)]
    models: A[tuple[A[str, msgspec.Meta(min_length=1)], ...], msgspec.Meta(min_length=1)] = ("*",)
    rate: str = ""
    concurrency: A[int, msgspec.Meta(ge=0)] = 0
    budget: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"the name '{self.name}' is not 1 to 64 letters, digits, '.', '_', '@' or '-'")
        if self.name in (ANONYMOUS, OTHERS):
            raise ValueError(f"the name '{self.name}' has a meaning of its own")
        if self.rate and not _RATE.fullmatch(self.rate):
            raise ValueError(f"the rate '{self.rate}' is not of the form 100/s, 100/m or 100/h")
        if self.budget:
            parse_budget(self.budget)

    def rate_limit(self) -> Rate | None:
        """Return the limit on inferences; None without one."""
        if not self.rate:
            return None
        count, _, unit = self.rate.partition("/")
        return Rate(int(count), _PERIODS[unit])

    def spendable(self) -> Budget | None:
        """Return the limit on what it consumes; None without one."""
        return parse_budget(self.budget) if self.budget else None


def new_secret() -> str:
    """Return a token for a client, which cannot be guessed."""
    return _PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the hash by which a token is known."""
    return sha256(secret.encode()).hexdigest()


def make_token(secret: str, **fields: object) -> Token:
    """Make the entry of a token.

    Raises:
        ValueError: a field that no entry may have.
    """
    return msgspec.convert({**fields, "sha256": digest(secret)}, Token)


def encode(token: Token) -> str:
    """Return the line of a token, without its end."""
    return msgspec.json.format(msgspec.json.encode(token), indent=0).decode()


def parse(text: str) -> tuple[Token, ...]:
    """Read the tokens of a file.

    Raises:
        ValueError: a line is no token, or two are of the same name or hash; the text names the line.
    """
    found: dict[str, Token] = {}
    hashes: set[str] = set()
    for number, line in _lines(text):
        try:
            token = msgspec.json.decode(line, type=Token)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: {error}") from None
        if token.name in found or token.sha256 in hashes:
            raise ValueError(f"line {number}: the token '{token.name}' is there twice")
        found[token.name] = token
        hashes.add(token.sha256)
    return tuple(found.values())


def append(text: str, token: Token) -> str:
    """Return the text of a file with another token.

    Raises:
        ValueError: the file is broken, or has a token of that name.
    """
    if any(known.name == token.name for known in parse(text)):
        raise ValueError(f"there is a token '{token.name}' already")
    return "".join(f"{line}\n" for line in (*text.splitlines(), encode(token)))


def without(text: str, name: str) -> str:
    """Return the text of a file without a token; comments stay.

    Raises:
        ValueError: the file is broken, or has no token of that name.
    """
    if all(known.name != name for known in parse(text)):
        raise ValueError(f"there is no token '{name}'")
    gone = {number for number, line in _lines(text) if msgspec.json.decode(line, type=Token).name == name}
    kept = (line for number, line in enumerate(text.splitlines(), 1) if number not in gone)
    return "".join(f"{line}\n" for line in kept)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    numbered: Iterable[tuple[int, str]] = enumerate(text.splitlines(), 1)
    return ((number, line) for number, line in numbered if line.strip() and not line.lstrip().startswith("#"))


_BLANKS: Final = str.maketrans(dict.fromkeys(string.whitespace, " "))
"""Those of ASCII: `str.split` knows others, which a token may end in."""


def bearer(value: str) -> str:
    """Return the token in the value of an `Authorization` header; "" if there is none.

    Besides `Bearer TOKEN` (RFC 6750), the bare token is accepted: clients of Triton on Alibaba EAS send it.
    """
    words = [word for word in value.translate(_BLANKS).split(" ") if word]
    if len(words) == 2 and words[0].lower() == "bearer":
        return words[1]
    return words[0] if len(words) == 1 else ""
