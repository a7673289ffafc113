"""What is recorded, as it changes while a server runs."""

from typing import Any

import msgspec
import pytest

from app.core.observability.live_settings import LiveChange, LiveSettings, decode_change, decode_live
from app.core.tape.switch import GLOBAL, TapeSetting, TapeSwitch

START = TapeSwitch(0.05)


@pytest.mark.parametrize(
    ("changes", "server", "model"),
    [
        ([], TapeSetting(True, 0.05), TapeSetting(True, None)),
        ([(GLOBAL, {"rate": 0.5})], TapeSetting(True, 0.5), TapeSetting(True, None)),
        ([(GLOBAL, {"recording": False})], TapeSetting(False, 0.05), TapeSetting(False, None)),
        ([("m", {"rate": 0.0})], TapeSetting(True, 0.05), TapeSetting(True, 0.0)),
        (
            [(GLOBAL, {"recording": False}), ("m", {"recording": True, "rate": 1.0})],
            TapeSetting(False, 0.05),
            TapeSetting(True, 1.0),
        ),
        ([("m", {"rate": 1.0}), ("m", {"rate": None})], TapeSetting(True, 0.05), TapeSetting(True, None)),
        ([(GLOBAL, {"rate": 1.0}), (GLOBAL, {"rate": None})], TapeSetting(True, 0.05), TapeSetting()),
    ],
)
def test_what_holds_after_changes(changes: Any, server: TapeSetting, model: TapeSetting) -> None:
    switch = START
    for scope, change in changes:
        switch = switch.changed(scope, change)
    assert (switch.of(GLOBAL), switch.of("m")) == (server, model)


def test_what_is_cleared_leaves_nothing_behind() -> None:
    assert START.changed("m", {"rate": 1.0}).changed("m", {"rate": None}) == START


def test_settings_and_changes_reach_other_processes() -> None:
    live, change = (
        LiveSettings(tape=START),
        LiveChange(tape={"m": {"rate": 0.5}, GLOBAL: {"recording": False}}),
    )
    arrived = decode_live(msgspec.msgpack.encode(live)).changed(decode_change(msgspec.msgpack.encode(change)))
    assert arrived == live.changed(change)
    assert decode_live(msgspec.msgpack.encode(arrived)) == arrived
    assert (arrived.tape.of("m"), arrived.tape.of(GLOBAL)) == (
        TapeSetting(False, 0.5),
        TapeSetting(False, 0.05),
    )
