"""Whether and how much is recorded while a server with a tape runs: what clients that manage it have set."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

GLOBAL: Final = ""
"""The scope of the settings for every model that has none of its own."""

Change = Mapping[str, Any]
"""New values of `recording` or `rate`; None clears one, absent ones stay."""


class TapeSetting(msgspec.Struct, frozen=True):
    """What holds for a model, or for all that have no setting of their own.

    Attributes:
        recording: False: nothing is recorded, failures neither.
        rate: share of the requests, 0 to 1; None for that of the model's `tape.yaml`, else of the server.
    """

    recording: bool = True
    rate: float | None = None


class TapeSwitch(msgspec.Struct, frozen=True):
    """The rate a server started with, and the changes since by model; `GLOBAL` is for all.

    Attributes:
        rate: of models whose `tape.yaml` names none, or that have no such file.
        overrides: the changes.
    """

    rate: float = 0.0
    overrides: dict[str, dict[str, Any]] = {}

    @property
    def setting(self) -> TapeSetting:
        """What holds for models without a setting of their own; it has a rate."""
        return TapeSetting(**{"rate": self.rate, **self.overrides.get(GLOBAL, {})})

    def for_model(self, model: str) -> TapeSetting:
        """Return what holds for a model; the rate is its own."""
        own = self.overrides.get(model, {})
        return TapeSetting(own.get("recording", self.setting.recording), own.get("rate"))

    def of(self, model: str) -> TapeSetting:
        """Return what holds for a model or `GLOBAL`."""
        return self.for_model(model) if model else self.setting

    def changed(self, model: str, change: Change) -> "TapeSwitch":
        """Return these settings with a change to one model or to `GLOBAL`."""
        mine = {**self.overrides.get(model, {}), **change}
        mine = {key: value for key, value in mine.items() if value is not None}
        overrides = {**self.overrides, model: mine}
        return TapeSwitch(self.rate, {name: own for name, own in overrides.items() if own})
