"""Chooses which of the two versions of a rollout answers a request. Pure."""

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest, RolloutHint


class Diffusion:
    """Chooses a share of requests, evenly: of any `n` in a row, `n * weight / WHOLE` but for less than one.

    Chance would make small shares of few requests nearly anything, also none. This is error diffusion: what
    one decision is off by is added to the next.
    """

    def __init__(self) -> None:
        self._owed = WHOLE // 2

    def draws(self, weight: int) -> bool:
        """Return whether the next request is among those that are chosen; `weight` is in parts of `WHOLE`."""
        self._owed += weight
        if self._owed < WHOLE:
            return False
        self._owed -= WHOLE
        return True


def part_of(salt: str, key: str) -> int:
    """Return a number below `WHOLE`, the same in every process; those below the weight go to the candidate.

    So a weight that rises moves keys to the candidate, and none back.
    """
    return int.from_bytes(blake2b(f"{salt}\0{key}".encode(), digest_size=8).digest()) % WHOLE


def draws_candidate(split: Split, request: InferRequest, diffusion: Diffusion) -> bool:
    """Return whether a request without a version goes to the candidate."""
    hint = request.rollout
    if hint is not None and hint.version:
        return hint.version == "candidate"
    if not split.weight:
        return False
    key = _key(split, request)
    return part_of(split.salt, key) < split.weight if key else diffusion.draws(split.weight)


def _key(split: Split, request: InferRequest) -> str:
    """Return what requests have in common that must get the same version; "" for nothing."""
    if request.sequence_id:
        return repr(request.sequence_id)
    key = request.rollout.key if request.rollout is not None else ""
    if request.chain:  # a call on behalf of another request
        return key or request.id
    kind, _, name = split.sticky.partition(":")
    if kind == "id":
        return request.id
    if kind == "parameter":
        return str(request.parameters.get(name, ""))
    return key


def heed_headers(split: Split, request: InferRequest, headers: Iterable[tuple[str, str]]) -> InferRequest:
    """Return a request with what its headers, or gRPC metadata, say to a rollout.

    Names are compared regardless of case; of several headers of a name, the last one counts.
    """
    kind, _, name = split.sticky.partition(":")
    if not split.match and kind != "header":
        return request
    given = {key.lower(): value for key, value in headers}
    version = next((rule.version for rule in split.match if given.get(rule.header.lower()) == rule.value), "")
    key = given.get(name.lower(), "") if kind == "header" else ""
    return replace(request, rollout=RolloutHint(version, key)) if version or key else request
