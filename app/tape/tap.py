"""The tap: what sees the requests of clients and their answers, of each version of a routing table."""

from msgspec.structs import replace

from app.core.inference import Target
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec
from app.routing.table import VersionEntry
from app.tape.recording import Recorder, Tapped
from app.tape.taken import Rules


class RequestTap:
    """The `Tap` of a router that records requests.

    Args:
        recorder: records them.
        rate: share of the requests that are recorded of models whose `tape.yaml` names none, or that have no
            such file; with 0 those without are not recorded.
        key: of the hashes of values.
    """

    def __init__(self, recorder: Recorder, rate: float = 0.0, key: bytes = b"") -> None:
        self._recorder, self._rate, self._key = recorder, rate, key

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        """Return what takes the place of a target: the target itself where nothing is recorded."""
        spec = self._spec(entry)
        if spec is None:
            return target
        return Tapped(
            self._recorder, Rules(entry.model, spec, Redaction(spec, self._key)), entry.decoupled, target
        )

    def _spec(self, entry: VersionEntry) -> TapeSpec | None:
        """Return what is recorded of a version, with its rate; None for nothing."""
        spec = entry.tape
        if spec is None:
            return TapeSpec(rate=self._rate) if self._rate else None
        if spec.rate is None:
            spec = replace(spec, rate=self._rate)
        return spec if spec.rate or spec.errors or spec.slow else None
