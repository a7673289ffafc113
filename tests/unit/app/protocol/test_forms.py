"""Forms: their parts, and bodies that are none or promise more than they have."""

import random
from itertools import product

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.protocol import forms
from app.protocol.forms import MAX_PARTS, Part, read_form
from app.protocol.torchserve import decode_prediction
from tests.costs import bounded
from tests.unit.app.ingress.compatible.test_torchserve import CONFIG

TYPE = "multipart/form-data; boundary=xyz"
MEMORY = 32 << 20
MIGRATED = text_format.Parse(CONFIG, mc.ModelConfig())


def part(name: str, data: bytes = b"", more: str = "", *headers: str) -> bytes:
    lines = [f'Content-Disposition: form-data; name="{name}"{more}', *headers, "", ""]
    return b"--xyz\r\n" + "\r\n".join(lines).encode() + data + b"\r\n"


def form(*parts: bytes, end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(parts) + end


def refused(body: bytes, content_type: str = TYPE) -> str:
    with pytest.raises(InferError) as caught:
        read_form(body, content_type)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_parts_have_names_types_and_bytes() -> None:
    body = form(
        part("a", b"\xff\r\n--xy"),
        part("\u00e9", b"", '; filename="f;g.bin"', "Content-Type: image/png"),
        part("b", b"1", "", "content-transfer-encoding: Binary", "Content-Type:  text/plain "),
        part("n", form(part("inner", b"x")).replace(b"xyz", b"zyx"), "", "Content-Type: multipart/mixed"),
        end=b"--xyz--",
    )
    assert read_form(body, TYPE) == [
        Part("a", "", "", b"\xff\r\n--xy"),
        Part("\u00e9", "f;g.bin", "image/png", b""),
        Part("b", "", "text/plain", b"1"),
        Part("n", "", "multipart/mixed", form(part("inner", b"x")).replace(b"xyz", b"zyx")),
    ]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(1, 40))
def test_any_bytes_come_back_however_they_are_cut(contents: list[bytes], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "_CHUNK", chunk)
        found = read_form(form(*(part("a", data) for data in contents)), TYPE)
    assert [each.data for each in found] == contents


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (b"", TYPE, "ends before its last boundary"),
        (b"x", TYPE, "cannot be read"),
        (form(part("a"), end=b""), TYPE, "ends before its last boundary"),
        (form(part("a"), end=b"--xyz\r\n"), TYPE, "ends before its last boundary"),
        (form(), TYPE, "expected a form of 1 to 1024 parts"),
        (form(*[part("a")] * (MAX_PARTS + 1)), TYPE, "expected a form of 1 to 1024 parts"),
        (form(part("a").replace(b"; name", b"; nom")), TYPE, "has no name"),
        (form(b"--xyz\r\n\r\n\r\n"), TYPE, "has no name"),
        (form(part("a" * 5000)), TYPE, "Maximum header size"),
        (form(part("a", b"", "; b=c" * 32)), TYPE, "more than 32 parameters"),
        (form(part("a", b"", "", *["A: b"] * 20)), TYPE, "Maximum header count"),
        (form(part("a", b"", "", "Content-Transfer-Encoding: base64")), TYPE, "transfer encoding: base64"),
        (form(part("a")), "multipart/form-data", "has no boundary"),
        (form(part("a")), "multipart/form-data; boundary=" + "x" * 300, "Boundary length"),
        (form(part("a")), "multipart/form-data; boundary=" + "x" * 3000, "more than 1024 characters"),
    ],
)
def test_other_bodies_are_refused(body: bytes, content_type: str, text: str) -> None:
    assert text in refused(body, content_type)


def test_as_many_parts_as_may_be() -> None:
    assert len(read_form(form(*[part("a")] * MAX_PARTS), TYPE)) == MAX_PARTS


SIZE = 1 << 20
HOSTILE = {
    "nested comments": part("a", b"", "(" * 4000),
    "semicolons": part("a", b"", ";" * 4000),
    "few semicolons": part("a", b"", ";" * 31),
    "quotes": part("a", b"", '; filename="' + '\\";' * 1300),
    "parts": part("a"),
    "false boundaries": b"\r\n--xyz ",
    "beginnings of boundaries": b"\r\n--xy",
    "line ends": b"\r\n\r",
    "headers": b"a:b\r\n",
    "spaces": b" ",
    "hyphens": b"--",
    "nothing": b"\0",
}


@pytest.mark.parametrize(("name", "lead"), list(product(HOSTILE, [b"", part("a")[:-2]])))
def test_time_and_memory_are_in_proportion(name: str, lead: bytes) -> None:
    """Where `email` needed half a minute for a mebibyte, tens of milliseconds are enough."""
    repeated = HOSTILE[name]
    body = lead + repeated * (SIZE // len(repeated))
    with bounded(2.0, MEMORY):
        for content_type in (TYPE, TYPE.replace("xyz", '"xyz"')):
            decode(body, content_type)


def decode(body: bytes, content_type: str) -> None:
    try:
        decode_prediction("m", "1", body, content_type, MIGRATED)
    except InferError:
        pass


def test_any_bytes_are_parts_or_refused() -> None:
    chance, whole = random.Random(1), form(part("a", b"1", '; filename="b"', "Content-Type: c"), part("d"))
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            start = chance.randint(0, len(body))
            body[start : start + chance.choice((0, 1, 9))] = chance.randbytes(chance.randint(0, 3))
        decode(bytes(body), TYPE)


def test_fields_in_one_line_are_limited() -> None:
    for body in (b"a=1&" * (SIZE // 4), b"%41" * (SIZE // 3), b"=" * SIZE, b"+" * SIZE):
        with bounded(2.0):
            decode(body, "application/x-www-form-urlencoded")
