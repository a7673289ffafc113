"""Messages that switch the tape: JSON over HTTP."""

from typing import Any, Final

from app.core.encoding import to_json
from app.core.errors import invalid_arg
from app.core.tape.switch import TapeSetting
from app.protocol.observability.names import check_names, settings_of

_SETTINGS: Final = ("recording", "rate")


def encode_http(setting: TapeSetting) -> bytes:
    """Return the JSON response."""
    return to_json(setting)


def decode_http(document: Any) -> dict[str, Any]:
    """Return the settings that a JSON document changes; null clears one.

    Raises:
        InferError: INVALID_ARG for an unknown setting or a value that it cannot have.
    """
    given = settings_of(document)
    check_names("tape setting", given, _SETTINGS)
    recording, rate = given.get("recording"), given.get("rate")
    if recording is not None and not isinstance(recording, bool):
        raise invalid_arg("'recording' is to be true, false or null")
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (number and 0 <= rate <= 1):
        raise invalid_arg("'rate' is to be a number from 0 to 1, or null")
    return {**given, "rate": float(rate)} if rate is not None else dict(given)
