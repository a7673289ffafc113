"""C reaches into no slot that is not there, and its table of them is the one of Python."""

import re
from importlib import import_module
from pathlib import Path
from types import MemberDescriptorType
from typing import Any

import pytest

from app.core.tensors import InferRequest
from app.native import slots
from app.native.sources import FOLDER
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages
from app.transport.wire.messages import _WireRequest

HEADER = FOLDER / "slot_names.h"


def users(name: str) -> list[str]:
    """Return the C files that use a slot by its name in C."""
    sources = [path for path in sorted(FOLDER.glob("*.[ch]")) if path != HEADER]
    return [path.name for path in sources if re.search(rf"\b{name}\b", path.read_text())]


@pytest.mark.parametrize("entry", slots.SLOTS, ids=lambda entry: entry.owner.split(":")[1])
def test_a_class_has_the_slots_that_c_uses(entry: slots.Slots) -> None:
    module, name = entry.owner.split(":")
    owner = getattr(import_module(module), name)
    for slot, in_c in entry.in_c().items():
        files = users(in_c)
        assert files, f"no C file uses {in_c}: take '{slot}' of {entry.owner} out of {slots.__file__}"
        assert isinstance(getattr(owner, slot, None), MemberDescriptorType), (
            f"{entry.owner} has no slot '{slot}', which {' and '.join(files)} in {FOLDER} use as {in_c}: "
            f"rename it in {slots.__file__} and there"
        )


def test_prefixes_differ() -> None:
    assert len({entry.prefix for entry in slots.SLOTS}) == len(slots.SLOTS)


def test_the_header_is_current() -> None:
    assert HEADER.read_text() == slots.header(), "python -m app.native.slots > app/native/slot_names.h"


def test_a_message_has_the_fields_of_a_request_in_their_order() -> None:
    fields = InferRequest.__struct_fields__
    assert _WireRequest.__struct_fields__ == fields[: fields.index("deadline")]


def test_an_extension_that_finds_no_slot_says_which_file_uses_it() -> None:
    extension: Any = pytest.importorskip("app.native.extension")

    class Renamed:
        __slots__ = ("channel", "request_id", "sink", "stream")

    messages = compiled_messages(TransportSettings(data_plane="native"))
    where = re.escape(str(Path("app", "native")))
    with pytest.raises(
        TypeError, match=rf"Renamed.* has no slot '_stream', which {where}/client_end\.c uses"
    ):
        extension.ClientEnd(messages, 0, {}, 0, 0, Renamed, 0, limit=1, max_frame=1)
