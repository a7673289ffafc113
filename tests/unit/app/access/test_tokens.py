"""The format of the file of tokens."""

import json

import msgspec
import pytest

from app.access.tokens import Rate, Token, append, digest, encode, make_token, new_secret, parse, without
from app.core.cost.budgets import parse_budget

HASH = "0123456789abcdef" * 4
OTHER = "f" * 64


def line(**fields: object) -> str:
    return json.dumps({"name": "a", "sha256": HASH, "scope": ["infer"], **fields})


def test_a_file_has_tokens_and_comments() -> None:
    text = f"# who\n\n{line()}\n  # and\n{line(name='b@x.y-z', sha256=OTHER, scope=['manage', 'metrics'])}\n"
    first, second = parse(text)
    assert first == Token(name="a", sha256=HASH, scope=("infer",))
    assert (first.models, first.rate_limit(), first.concurrency) == (("*",), None, 0)
    assert (second.name, second.scope) == ("b@x.y-z", ("manage", "metrics"))


@pytest.mark.parametrize(("rate", "limit"), [("100/s", (100, 1)), ("7/m", (7, 60)), ("1/h", (1, 3600))])
def test_rates_are_counts_in_periods(rate: str, limit: tuple[int, float]) -> None:
    (token,) = parse(line(rate=rate))
    assert token.rate_limit() == Rate(*limit)


def test_a_budget_is_an_amount_in_a_period() -> None:
    (token,) = parse(line(budget="5 EUR/d"))
    assert token.spendable() == parse_budget("5 EUR/d")
    assert parse(line())[0].spendable() is None
    assert '"budget":"5 EUR/d"' in encode(token).replace(": ", ":")


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("{", "truncated"),
        (line(name=""), "the name '' is not"),
        (line(name="a b"), "the name 'a b' is not"),
        (line(name="a\n"), "is not 1 to 64"),
        (line(name="x" * 65), "is not 1 to 64"),
        (line(name="anonymous"), "has a meaning of its own"),
        (line(scope=[]), "length >= 1"),
        (line(scope=["read"]), "'read'"),
        (line(models=[]), "length >= 1"),
        (line(models=[""]), "length >= 1"),
        (line(rate="0/s"), "the rate '0/s' is not of the form"),
        (line(rate="1/d"), "the rate '1/d' is not of the form"),
        (line(concurrency=-1), ">= 0"),
        (line(budget="5/d"), "the budget '5/d' is not of the form"),
        (line(sha256="secret"), "regex"),
        (line(expires="never"), "unknown field `expires`"),
        (line(name="ok", sha256=HASH.upper()), "regex"),
        (f"{line()}\n{line(sha256=OTHER)}", "line 4: the token 'a' is there twice"),
        (f"{line()}\n{line(name='b')}", "line 4: the token 'b' is there twice"),
    ],
)
def test_a_broken_line_is_named(broken: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^line [34]: ") as raised:
        parse(f"# comment\n\n{broken}\n")
    assert text in str(raised.value)


def test_a_secret_cannot_be_guessed_and_is_known_by_its_hash() -> None:
    one, other = new_secret(), new_secret()
    assert one != other and len(one) >= len("nereid_") + 43  # 256 bits in base 64
    token = make_token(one, name="a", scope=("infer",))
    assert token.sha256 == digest(one) != digest(other)
    assert one not in encode(token)


def test_an_entry_that_no_file_may_have_is_not_made() -> None:
    with pytest.raises(msgspec.ValidationError, match="'read'"):
        make_token("secret", name="a", scope=("read",))


def test_a_token_is_appended_on_a_line_of_its_own() -> None:
    token = make_token("secret", name="b", scope=("infer",), models=("a*",), rate="5/m", concurrency=2)
    text = append(f"# mine\n{line()}", token)
    assert text.splitlines()[:2] == ["# mine", line()] and text.endswith("\n")
    assert parse(text)[1] == token
    with pytest.raises(ValueError, match="there is a token 'b' already"):
        append(text, token)


def test_a_token_is_taken_out_and_comments_stay() -> None:
    text = f"# mine\n{line()}\n{line(name='b', sha256=OTHER)}\n# end\n"
    assert without(text, "a") == f"# mine\n{line(name='b', sha256=OTHER)}\n# end\n"
    with pytest.raises(ValueError, match="there is no token 'c'"):
        without(text, "c")
