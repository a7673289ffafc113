"""What is recorded, for people: rows by conditions and in parts, and a row in full."""

from pathlib import Path

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.tape import browsing
from app.tape.browsing import TapeBrowser, tensor_fields
from nereid_client.tape.rows import TapeTensor
from tests.unit.client.tape.made import row, write

NS = 10**9


@pytest.fixture
def browser(tmp_path: Path) -> TapeBrowser:
    """Ten rows of `simple` and one of another model."""
    write(tmp_path / "ab-000001.open", [row(number, 100.0 + number) for number in range(1, 11)])
    write(tmp_path / "cd-000001.open", [row(1, 50.0, model="other", ingress="cd")])
    return TapeBrowser(tmp_path)


async def test_rows_come_newest_first_and_in_parts(browser: TapeBrowser) -> None:
    first = await browser.rows("simple", "", 4)
    assert [each.key for each in first.rows] == ["ab-10", "ab-9", "ab-8", "ab-7"]
    assert (first.looked, first.before) == (4, 107 * NS)
    second = await browser.rows("simple", "", 10, first.before)
    assert [each.key for each in second.rows] == [f"ab-{number}" for number in range(6, 0, -1)]
    assert second.before == 0
    assert [(each.model, each.rows) for each in await browser.models()] == [("other", 1), ("simple", 10)]


async def test_conditions_choose_and_are_explained(browser: TapeBrowser) -> None:
    assert [each.key for each in (await browser.rows("simple", "key=ab-3", 50)).rows] == ["ab-3"]
    with pytest.raises(InferError, match="nonsense") as caught:
        await browser.rows("simple", "nonsense=1", 50)
    assert caught.value.code is ErrorCode.INVALID_ARG


async def test_look_ends_when_its_time_is_over(browser: TapeBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "_LOOK_S", -1.0)
    monkeypatch.setattr(browsing, "_LOOKED_BETWEEN", 3)
    found = await browser.rows("simple", "key=ab-1", 50)
    assert (found.rows, found.looked, found.before) == ([], 0, 0)
    monkeypatch.setattr(browsing, "_LOOK_S", 60.0)
    assert (await browser.rows("simple", "key=ab-1", 50)).looked == 10


@pytest.mark.parametrize("key", ["ab-99", "cd-1", "../ab-1", "*-1", "ab-1/../../x", ""])
async def test_row_of_another_model_or_place_is_unknown(browser: TapeBrowser, key: str) -> None:
    with pytest.raises(InferError, match="there is no row") as caught:
        await browser.row("simple", key)
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert (await browser.row("simple", "ab-4")).number == 4


async def test_tape_that_is_empty_has_no_rows(tmp_path: Path) -> None:
    browser = TapeBrowser(tmp_path)
    assert await browser.models() == []
    assert (await browser.rows("simple", "", 50)).rows == []


def test_values_are_bounded_and_can_be_written_as_json() -> None:
    values = np.array([1, np.nan, np.inf, 4], "<f4")
    tensor = TapeTensor("x", "FP32", (4,), values.tobytes(), 16)
    assert tensor_fields(tensor, 3) | {"bytes": 0} == {
        "name": "x",
        "datatype": "FP32",
        "shape": (4,),
        "bytes": 0,
        "state": "kept",
        "data": [1.0, "nan", "inf"],
        "values": 4,
    }
    text = TapeTensor("t", "BYTES", (1,), b"\x05\0\0\0a\xff<b>", 9)
    assert tensor_fields(text)["data"] == ["a\\xff<b>"]
    wrong = TapeTensor("x", "FP32", (9,), b"\0\0", 2)
    assert "no FP32" in tensor_fields(wrong)["error"]
    assert "data" not in tensor_fields(TapeTensor("s", "BYTES", (1,), b"", 90, "size"))
