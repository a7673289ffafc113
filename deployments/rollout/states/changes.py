"""Changes of a rollout that a person asks for: checked, then applied to its record. Pure."""

from collections.abc import Callable
from typing import Final

from app.core.errors import InferError, invalid_arg
from app.core.identifiers import name_of
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutChange, RolloutState
from deployments.rollout.states import machine, taping
from deployments.rollout.states.policy import merged
from deployments.rollout.states.record import Record
from deployments.rollout.states.selection import Offer


def changed(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    """Apply any change but `start`.

    Raises:
        InferError: INVALID_ARG when it makes no sense now.
    """
    if not record.on:
        status = record.status
        raise invalid_arg(f"no rollout of model '{status.model}' is on; {_last(record)}")
    if record.status.state is RolloutState.ROLLING_BACK:
        raise _refused(record, change, "it is being rolled back")
    return _ACTIONS[change.action](record, change, who, now)


def started_from(policy: RolloutSpec, change: RolloutChange) -> RolloutSpec:
    """Return the policy of a rollout that a person starts.

    Raises:
        InferError: INVALID_ARG for a weight or a field that is wrong.
    """
    if change.weight is not None:
        _check_weight(change.weight)
    return merged(policy, change.spec or {})


def check_start(offer: Offer, last: Record | None, stable: int | None, wanted: int | None) -> None:
    """Check that a rollout may start.

    Raises:
        InferError: INVALID_ARG.
    """
    model, newest = name_of(offer.name), max(offer.versions)
    if offer.ensemble:
        raise invalid_arg(
            f"model '{model}' is an ensemble, whose versions have the same configuration and no files: roll "
            "out the models that it calls"
        )
    if stable is None:
        raise invalid_arg(f"no version of model '{model}' is loaded: load it, a first load needs no rollout")
    if wanted is not None:
        _check_wanted(offer, stable, wanted)
    if newest <= stable:
        raise invalid_arg(
            f"there is nothing to roll out: requests to model '{model}' without a version mean version "
            f"{stable}, and the newest of the repository is {newest}"
        )
    if last is not None and last.on and last.status.candidate == newest:
        raise invalid_arg(
            f"the {last.text} is on already ({last.status.state.value} at {last.status.percent:g} %)"
        )


def _check_wanted(offer: Offer, stable: int, wanted: int) -> None:
    """Check that the version that a rollout is to start is the newest one.

    Raises:
        InferError: INVALID_ARG.
    """
    model, newest = name_of(offer.name), max(offer.versions)
    if wanted < stable and wanted in (*offer.on_disk, *offer.ready):
        raise invalid_arg(
            f"version {wanted} is older than version {stable}, which serves: "
            f"'nereid rollback {model} --to {wanted}' goes back to it at once"
        )
    if wanted not in offer.on_disk:
        there = ", ".join(map(str, offer.on_disk)) or "none"
        raise invalid_arg(f"model '{model}' has no version {wanted} in its repository; it has {there}")
    if wanted > newest:
        selected = ", ".join(map(str, offer.versions))
        raise invalid_arg(
            f"the version policy of model '{model}' selects {selected} and not {wanted}, which would be "
            "unloaded after the rollout: name it in 'version_policy' of config.pbtxt, then start it"
        )
    if wanted != newest:
        raise invalid_arg(
            f"version {wanted} is older than version {newest}, which would be served after it: start version "
            f"{newest}, or 'nereid rollback {model} --to {wanted}' serves version {wanted} at once instead"
        )


def _set(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    if change.weight is None and change.spec is None:
        raise _refused(record, change, "give a weight, a spec or both")
    if change.spec is not None:
        status = record.status
        record = machine.with_status(record, spec=merged(status.spec, change.spec))
        if change.weight is None:
            noted = machine.moved(record, status.state, now, who, "the policy was changed")
            return machine.with_status(noted, reason=status.reason, since=status.since)
    assert change.weight is not None
    _check_weight(change.weight)
    if record.status.state is RolloutState.LOADING:
        return machine.planned(record, change.weight, now, who)
    _require_loaded(record, change)
    weighted = machine.weighted(record, change.weight, now, who, "the weight was set")
    return machine.paused(weighted, record.status.reason, now, who) if _is_paused(record) else weighted


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 100:  # also not a number
        raise invalid_arg(f"weight is {weight:g}, but it is a percentage: give 0 to 100")


def _pause(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    if _is_paused(record):
        raise _refused(record, change, f"it is paused already ({record.status.reason})")
    _require_loaded(record, change)
    return machine.paused(record, asked("paused", change), now, who)


def _resume(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    if not _is_paused(record):
        raise _refused(record, change, "it is not paused")
    return taping.resumed(record, now, who)


def _promote(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    if record.status.state is RolloutState.PROMOTED:
        raise _refused(record, change, "it is promoted already")
    if record.status.state is RolloutState.LOADING:
        return machine.planned(record, 100.0, now, who)
    _require_loaded(record, change)
    promoted = machine.weighted(record, 100.0, now, who, asked("promoted", change))
    return machine.with_status(promoted, resumes=None)


def _abort(record: Record, change: RolloutChange, who: str, now: float) -> Record:
    what = "rolled back" if change.action == "rollback" else "aborted"
    return machine.rolling_back(record, asked(what, change), now, who, RolloutState.ABORTED)


Action = Callable[[Record, RolloutChange, str, float], Record]
_ACTIONS: Final[dict[str, Action]] = {
    "set": _set,
    "pause": _pause,
    "resume": _resume,
    "promote": _promote,
    "abort": _abort,
    "rollback": _abort,
}


def asked(what: str, change: RolloutChange) -> str:
    """Return what a person has asked for, with the reason if there is one."""
    return f"{what} on request: {change.why}" if change.why else f"{what} on request"


def _is_paused(record: Record) -> bool:
    return record.status.state is RolloutState.PAUSED


def _require_loaded(record: Record, change: RolloutChange) -> None:
    if not machine.judged(record):
        waiting = record.status.reason if _is_paused(record) else "its version is still loading"
        raise _refused(record, change, f"{waiting}; wait for it, or abort")


def _last(record: Record) -> str:
    status = record.status
    return f"the last one, from version {status.stable} to {status.candidate}, is {status.state.value}"


def _refused(record: Record, change: RolloutChange, why: str) -> InferError:
    return invalid_arg(f"cannot {change.action} the {record.text}: {why}")
