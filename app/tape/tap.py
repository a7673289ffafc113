"""The tap: what sees the requests of clients and their answers, of each version of a routing table."""

from msgspec.structs import replace

from app.core.inference import Target
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec
from app.core.tape.switch import TapeSwitch
from app.routing.table import VersionEntry
from app.tape.recording import Recorder, Tapped
from app.tape.taken import Rules


class RequestTap:
    """The `Tap` of a router that records requests.

    Args:
        recorder: records them.
        switch: what is recorded at the start.
        key: of the hashes of values.

    Attributes:
        switch: what is recorded; a router has to be told that it has changed.
    """

    def __init__(self, recorder: Recorder, switch: TapeSwitch, key: bytes = b"") -> None:
        self._recorder, self.switch, self._key = recorder, switch, key

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
        setting, spec = self.switch.for_model(entry.model), entry.tape
        if not setting.recording:
            return None
        rate = self.switch.setting.rate if setting.rate is None else setting.rate
        if spec is None:
            return TapeSpec(rate=rate) if rate else None
        if spec.rate is None or setting.rate is not None:
            spec = replace(spec, rate=rate)
        return spec if spec.rate or spec.errors or spec.slow else None
