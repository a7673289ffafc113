"""The tokens in force: who a client is, what it may do, and what it has done. No I/O.

A token is found by its hash. That takes a time that says nothing of the tokens known: a lookup compares
hashes, which a client cannot choose, and a header is compared with one that was accepted only when Python's
keyed hashes of both are equal, that is, when they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from sys import maxsize
from typing import Final, Literal

import msgspec

from app.access.limits import RateLimiter
from app.access.tokens import ANONYMOUS, OTHERS, SCOPES, Scope, Token, bearer, digest
from app.core.cost.budgets import Budget
from app.core.errors import ErrorCode, Failure, shortened
from app.protocol.restrictions import Category

Need = Category | Literal["metrics"]
"""What a request needs the right to: the category of its route or RPC, or the metrics port."""

_ALL: Final[frozenset[Scope]] = frozenset({"infer", "manage", "metrics"})
_MODELS: Final[frozenset[Scope]] = frozenset({"infer", "manage"})
_MANAGE: Final[frozenset[Scope]] = frozenset({"manage"})
SUFFICIENT: Final[Mapping[Need, frozenset[Scope]]] = {
    "health": _MODELS,  # of a model; that of the server is open
    "metadata": _ALL,
    "inference": frozenset({"infer"}),
    "model-config": _MODELS,
    "statistics": _ALL,
    "model-repository": _MANAGE,
    "shared-memory": _MANAGE,
    "trace": _MANAGE,
    "logging": _MANAGE,
    "feedback": frozenset({"feedback"}),
    "metrics": frozenset({"metrics"}),
}
"""The scopes of which one suffices for a need."""

MAX_NAMES: Final = 100
"""Names of tokens that are counted separately."""
_UNAUTHENTICATED: Final = Failure(
    ErrorCode.UNAUTHENTICATED, "a valid token is required, as 'Authorization: Bearer TOKEN'"
)
_MAX_HEADERS: Final = 4096
"""Accepted headers kept with their tokens."""
_MAX_PERMITTED: Final = 1024
"""Names of models that a grant keeps as permitted."""
_CONCURRENCY_RETRY_S: Final = 1.0
_MAX_SHOWN: Final = 100
"""Characters of a token's patterns in a refusal."""


class Outcomes(msgspec.Struct):
    """Counts of requests by what was decided about them."""

    ok: int = 0
    denied: int = 0
    limited: int = 0


class Grant:
    """A token in force.

    Attributes:
        name: of the token.
        needs: what it has the right to.
        outcomes: of its requests; shared with others of the same name.
        revoked: its file no longer has it.
        permitted: models that `require` has found it to be for.
        overspent: what its inferences are refused with, because its budget is spent; None while it is not.
    """

    __slots__ = (
        "_allowed",
        "_limiter",
        "_models",
        "_running",
        "name",
        "needs",
        "outcomes",
        "overspent",
        "permitted",
        "revoked",
        "token",
    )

    def __init__(self, token: Token, outcomes: Outcomes) -> None:
        self._running = 0
        self._limiter: RateLimiter | None = None
        self.revoked = False
        self.overspent: Failure | None = None
        self.token = msgspec.structs.replace(token, rate="")
        self.apply(token, outcomes)

    def apply(self, token: Token, outcomes: Outcomes) -> None:
        """Give it the rights that the file has now; an open stream has them from its next request on."""
        if token.rate != self.token.rate:
            rate = token.rate_limit()
            self._limiter = None if rate is None else RateLimiter(rate)
        self.token, self.name, self.outcomes = token, token.name, outcomes
        self.needs = frozenset(need for need, scopes in SUFFICIENT.items() if scopes & {*token.scope})
        self._models = None if "*" in token.models else re.compile("|".join(map(translate, token.models)))
        self._allowed = token.concurrency or maxsize
        self.permitted: set[str] = set()

    @property
    def for_all(self) -> bool:
        """Whether no pattern restricts it to some models."""
        return self._models is None

    def permits(self, model: str) -> bool:
        """Return whether it is for a model; what concerns no model, "", it is for."""
        return self._models is None or not model or self._models.match(model) is not None

    def refusal(self, model: str, whole: bool = False) -> Failure | None:
        """Return why it does not suffice for a model, or for what concerns none; None if it does.

        `whole` says that what names no model concerns the whole server: one for some models does not suffice.
        """
        if self.revoked:
            return _UNAUTHENTICATED
        if whole and not model and not self.for_all:
            return _not_for_all(self)
        return None if self.permits(model) else _not_for(self, model)

    def require(self, model: str, whole: bool = False) -> None:
        """Check that it suffices; see `refusal`.

        Raises:
            InferError: PERMISSION_DENIED; UNAUTHENTICATED if it was revoked during a call.
        """
        if (refusal := self.refusal(model, whole)) is not None:
            self.outcomes.denied += 1
            raise refusal.error()
        if len(self.permitted) < _MAX_PERMITTED:
            self.permitted.add(model)

    def sees(self, labels: Mapping[str, object]) -> bool:
        """Return whether a sample with these labels is of its models, of itself or of nobody."""
        return self.permits(str(labels.get("model", ""))) and labels.get("token", self.name) == self.name

    def revoke(self) -> None:
        """Withdraw it; an open stream has it no longer from its next request on."""
        self.revoked = True
        self.permitted.clear()

    def begin(self, clock: Callable[[], float]) -> bool:
        """Count an inference at the time of `clock`; return whether `end` must be called after it.

        Raises:
            InferError: RESOURCE_EXHAUSTED, if one of its limits is reached.
        """
        if self.overspent is not None:
            self.outcomes.limited += 1
            raise self.overspent.error()
        if self._running >= self._allowed:
            self._limit(f"{self._allowed} inferences in flight", _CONCURRENCY_RETRY_S)
        if self._limiter is not None and (wait := self._limiter.wait(clock())):
            self._limit(f"{self.token.rate} inferences", wait)
        self.outcomes.ok += 1
        if self._allowed is maxsize:
            return False
        self._running += 1
        return True

    def end(self) -> None:
        """Count an inference that `begin` counted as finished."""
        self._running -= 1

    def _limit(self, limit: str, wait: float) -> None:
        self.outcomes.limited += 1
        text = f"the token '{self.name}' is limited to {limit}, try again in {wait:.3g} s"
        raise Failure(ErrorCode.RESOURCE_EXHAUSTED, text, retry_after_s=wait).error()


class Grants:
    """The tokens in force, by their hashes and by the headers that brought them.

    Attributes:
        counted: outcomes by name of token, at most `MAX_NAMES` names and those of the others together.
        number: of the set of tokens, another one after each change.
    """

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.counted: dict[str, Outcomes] = {ANONYMOUS: Outcomes(), OTHERS: Outcomes()}
        self.number = 0
        self._by_hash: dict[str, Grant] = {}
        self._by_header: dict[str, Grant] = {}
        self.replace(tokens)

    def replace(self, tokens: Iterable[Token]) -> None:
        """Put other tokens into force."""
        old, self._by_hash, self._by_header = self._by_hash, {}, {}
        for token in tokens:
            grant, outcomes = old.pop(token.sha256, None), self._outcomes(token.name)
            if grant is None:
                grant = Grant(token, outcomes)
            else:
                grant.apply(token, outcomes)
            self._by_hash[token.sha256] = grant
        for grant in old.values():
            grant.revoke()
        self.number += 1

    def budgets(self) -> dict[str, Budget]:
        """Return the budgets of the tokens that have one, by name."""
        found = ((grant.name, grant.token.spendable()) for grant in self._by_hash.values())
        return {name: budget for name, budget in found if budget is not None}

    def overspend(self, refusals: Mapping[str, Failure]) -> None:
        """Refuse inferences of the tokens of these names, and of no others, until the next call."""
        for grant in self._by_hash.values():
            grant.overspent = refusals.get(grant.name)

    def _outcomes(self, name: str) -> Outcomes:
        if name not in self.counted and len(self.counted) < MAX_NAMES + 2:
            self.counted[name] = Outcomes()
        return self.counted.get(name, self.counted[OTHERS])

    def find(self, authorization: str) -> Grant | None:
        """Return the token that an `Authorization` header has; None for none that is known."""
        grant = self._by_header.get(authorization)
        if grant is None:
            secret = bearer(authorization)
            grant = self._by_hash.get(digest(secret)) if secret else None
            if grant is not None and len(self._by_header) < _MAX_HEADERS:
                self._by_header[authorization] = grant
        return grant

    def refusal(
        self, grant: Grant | None, need: Need, model: str = "", whole: bool = False
    ) -> Failure | None:
        """Return why a request may not go on; None if it may. A refusal is not counted yet.

        `model` and `whole` are those of `Grant.refusal`.
        """
        if grant is None:
            return _UNAUTHENTICATED
        if need not in grant.needs:
            scopes = " or ".join(scope for scope in SCOPES if scope in SUFFICIENT[need])
            text = f"the token '{grant.name}' lacks the scope {scopes}"
            return Failure(ErrorCode.PERMISSION_DENIED, text)
        return grant.refusal(model, whole)

    def denied(self, grant: Grant | None) -> None:
        """Count a refusal."""
        (self.counted[ANONYMOUS] if grant is None else grant.outcomes).denied += 1


def _not_for(grant: Grant, model: str) -> Failure:
    return Failure(ErrorCode.PERMISSION_DENIED, f"the token '{grant.name}' is not for the model '{model}'")


def _not_for_all(grant: Grant) -> Failure:
    models = shortened(", ".join(grant.token.models), _MAX_SHOWN)
    text = f"the token '{grant.name}' is for some models only ({models}), and this concerns the whole server"
    return Failure(ErrorCode.PERMISSION_DENIED, text)
