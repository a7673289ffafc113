"""The picture of the architecture is what its generator draws, and its texts fit."""

import re

import pytest

from release.architecture import BOXES, SIZES, draw
from tests.server import ROOT


@pytest.mark.parametrize("form", SIZES)
def test_picture_is_the_one_drawn(form: str) -> None:
    assert (ROOT / "docs" / f"{form}.svg").read_text() == draw(form), "python -m release.architecture docs"


def test_texts_fit_into_their_boxes() -> None:
    for box in BOXES:
        for _, _, width, _ in (box.wide, box.narrow):
            assert max(7.6 * len(box.title), 6.4 * len(box.about)) < width, box.title


def test_small_form_is_read_on_a_telephone() -> None:
    """Its smallest letters have 11 pixels or more, where a page is 390 wide and has margins of 16."""
    smallest = min(map(float, re.findall(r"font-size[:=]\W*([0-9.]+)", draw("architecture_narrow"))))
    assert smallest * (390 - 2 * 16) / SIZES["architecture_narrow"][0] >= 11
