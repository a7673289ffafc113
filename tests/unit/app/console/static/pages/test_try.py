"""The form for each kind of model, used as a person does: values written, files chosen, buttons pressed."""

import wave
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from tests.browser import opened
from tests.server import ROOT
from tests.unit.app.console.static.pages.tried import HOSTILE, TYPES, Tried

CAT = ROOT / "tests" / "data" / "cat.jpg"
WRITTEN = {
    "BOOL": ("[true, false, 1]", ["true", "false", "true"]),
    "BYTES": ('["a", "é <b>"]', ["a", "é <b>"]),
    "INT64": ("[-9223372036854775808, 9007199254740993]", ["-9223372036854775808", "9007199254740993"]),
    "UINT64": ("[18446744073709551615, 0]", ["18446744073709551615", "0"]),
    "INT8": ("[-128, 127]", ["-128", "127"]),
    "FP16": ("[0.5, -65504, 1e-7]", ["0.5", "-65504", "1.19209e-7"]),
    "BF16": ("[0.5, -3, 1e30]", ["0.5", "-3", "1.00026e+30"]),
    "FP32": ("[0.1, -1e30]", ["0.1", "-1e+30"]),
    "FP64": ("[0.1, NaN, -Infinity]", ["0.1", "NaN", "-Infinity"]),
}
"""What is written for an identity model by its type, and what is read in the answer."""


def answered(page: Any, button: str = "Send") -> Any:
    """Press a button; return the place of the answer once there is one."""
    answer = page.get_by_role("region", name="Answer")
    page.get_by_role("button", name=button, exact=True).click()
    answer.get_by_text("from here to the answer").or_(answer.get_by_role("alert")).first.wait_for()
    return answer


@pytest.mark.parametrize("datatype", TYPES)
def test_each_data_type_is_sent_and_shown(browser: Any, tried: Tried, datatype: str) -> None:
    text, expected = WRITTEN.get(datatype, ("[1, 2, 3]", ["1", "2", "3"]))
    with opened(browser, f"{tried.url}#/try/identity_{datatype.lower()}") as page:
        if datatype == "BYTES":
            page.get_by_label("How to give INPUT0").select_option("texts")
        page.get_by_label("Values of INPUT0").fill(text)
        answer = answered(page)
        cells = answer.locator("pre" if datatype == "BYTES" else "tbody td")
        assert cells.all_text_contents() == expected
        assert answer.locator("b, img, script").count() == 0


def test_open_dimension_can_be_edited(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/identity_int32") as page:
        size, values = page.get_by_label("Dimension 1 of INPUT0"), page.get_by_label("Values of INPUT0")
        size.fill("4")
        size.press("Tab")
        assert values.input_value() == "[1, 1, 1, 1]"
        values.fill("[5, 6]")
        assert size.input_value() == "2"
        assert "INT32 2" in answered(page).inner_text()


def test_large_tensor_is_sent_as_bytes(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/identity_fp32") as page:
        size = page.get_by_label("Dimension 1 of INPUT0")
        size.fill("50000")
        size.press("Tab")
        page.get_by_label("fill with").select_option("count")
        with page.expect_request("**/infer") as sent:
            answer = answered(page)
        assert sent.value.headers["inference-header-content-length"]
        assert len(sent.value.post_data_buffer) > 200_000
        assert "50,000 values: least 0, mean 25,000, most 49,999" in answer.inner_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2", "This is no JSON"),
        ("[300]", "300 is no INT8 (-128 to 127)"),
        ("[1.5]", "1.5 is no whole number"),
        ("[[1, 2]]", "The values have 2 dimensions, and the input has 1"),
        ('["<b>"]', '"<b>" is no whole number'),
    ],
)
def test_values_that_do_not_fit_are_told_before_they_are_sent(
    browser: Any, tried: Tried, text: str, problem: str
) -> None:
    with opened(browser, f"{tried.url}#/try/identity_int8") as page:
        page.get_by_label("Values of INPUT0").fill(text)
        page.get_by_text(problem).first.wait_for()
        assert problem in answered(page).get_by_role("alert").inner_text()


def test_errors_are_the_servers_words(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/refuses", refused=True) as page:
        said = answered(page).get_by_role("alert")
        assert f"refused: {HOSTILE}" in said.inner_text()
        assert page.locator("img[src=x], #main script").count() == 0


@pytest.mark.parametrize(("scale", "most"), [("255", 255.0), ("1", 1.0), ("pm1", 1.0), ("imagenet", 2.3)])
def test_picture_becomes_pixels_of_a_scale(browser: Any, tried: Tried, scale: str, most: float) -> None:
    image = pytest.importorskip("PIL.Image")
    with opened(browser, f"{tried.url}#/try/means") as page:
        page.get_by_label("Values", exact=True).select_option(scale)
        page.get_by_label("Picture", exact=True).set_input_files(CAT)
        page.get_by_text("sent as 32 × 32").wait_for()
        answer = answered(page)
        found = [float(text) for text in answer.locator("tbody td").all_text_contents()]
    pixels = np.asarray(image.open(CAT).convert("RGB").resize((32, 32)), np.float64) / 255
    means = {"255": pixels * 255, "1": pixels, "pm1": pixels * 2 - 1, "imagenet": imagenet(pixels)}
    assert found == pytest.approx(means[scale].mean((0, 1)).tolist(), abs=0.03 * most)


def imagenet(pixels: Any) -> Any:
    return (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]


def test_answer_that_is_a_picture_is_drawn(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/negative") as page:
        page.get_by_label("Picture", exact=True).set_input_files(CAT)
        page.get_by_text("sent as 320 × 448").or_(page.get_by_text("sent as 448 × 288")).wait_for()
        drawn = answered(page).get_by_role("img", name="negative as a picture")
        corner = "node => Array.from(node.getContext('2d').getImageData(0, 0, 1, 1).data)"
        sent = page.get_by_role("img", name="The picture as it is sent")
        before, after = sent.evaluate(corner), drawn.evaluate(corner)
        assert [one + other for one, other in zip(before[:3], after[:3], strict=True)] == [255, 255, 255]


def test_picture_file_is_sent_as_it_is_and_its_classes_have_labels(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/picture_file") as page:
        page.get_by_label("Picture", exact=True).set_input_files(CAT)
        page.get_by_role("img", name="The chosen picture cat.jpg").wait_for()
        page.get_by_label("scores").select_option("3")
        answer = answered(page)
        assert answer.locator(".classes tbody th").all_text_contents() == ["<b>cat</b>", "dog", "none"]
        assert str(CAT.stat().st_size) in answer.inner_text()
        assert answer.get_by_role("img", name="A picture in the answer").count() == 1


def sound(seconds: float, rate: int = 8000) -> bytes:
    """Return a file of a tone of half the full level, the first quarter silent."""
    samples = np.sin(np.arange(int(seconds * rate)) * 0.7) * 16384
    samples[: len(samples) // 4] = 0
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def test_sound_is_sent_piece_by_piece_as_a_sequence(browser: Any, tried: Tried) -> None:
    file = {"name": "tone.wav", "mimeType": "audio/wav", "buffer": sound(0.2)}
    with opened(browser, f"{tried.url}#/try/hears") as page:
        page.get_by_label("Sound", exact=True).set_input_files(file)
        page.get_by_text("3,200 samples at 16,000 Hz; piece 1 of 7 is next").wait_for()
        page.get_by_role("button", name="Play all pieces").click()
        answer = page.get_by_role("region", name="Answer")
        answer.get_by_text("7 answers; it has ended").wait_for()
        levels = [float(line.split("= ")[1]) for line in answer.locator(".answers li").all_text_contents()]
        assert levels[0] < 0.01 and max(levels) == pytest.approx(0.5, abs=0.05)
        assert answer.get_by_role("img", name="level over 7 answers").count() == 1


def test_sequence_is_started_continued_and_ended(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/sums") as page:
        answer = page.get_by_role("region", name="Answer")
        presses = (("Start", 1, 1), ("Next", 2, 3), ("End", 3, 6), ("Start", 4, 4))
        for word, value, total in presses:
            page.get_by_label("Values of INPUT").fill(f"[[{value}]]")
            page.get_by_role("button", name=word, exact=True).click()  # once it is enabled
            answer.get_by_text(f"SUM = {total}").first.wait_for()
        assert answer.locator(".answers li").count() == 1


def test_stream_is_shown_as_it_comes(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/words") as page:
        answer = page.get_by_role("region", name="Answer")
        page.get_by_label("Text of prompt").fill(f"one {HOSTILE} three")
        page.get_by_role("button", name="Send").click()
        answer.get_by_text("5 answers in").wait_for()
        assert answer.locator("pre").inner_text().strip() == f"one {HOSTILE} three"
        assert answer.locator("img, script").count() == 0
        page.get_by_label("Text of prompt").fill("one fail")
        page.get_by_role("button", name="Send").click()
        answer.get_by_role("alert").wait_for()
        assert "<b>no</b> more words" in answer.get_by_role("alert").inner_text()


def test_chat_answers_as_it_is_written(browser: Any, tried: Tried) -> None:
    with opened(browser, f"{tried.url}#/try/words") as page:
        page.get_by_text("Chat, by the OpenAI API").click()
        page.get_by_label("Message", exact=True).fill(f"say {HOSTILE}")
        page.keyboard.press("Enter")
        page.get_by_text("The first piece after").wait_for()
        said = page.get_by_role("list", name="Messages").locator("p").all_text_contents()
        assert [text.strip() for text in said] == [f"say {HOSTILE}", f"say {HOSTILE}"]
        assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("model", ["identity_bytes", "means", "hears", "picture_file"])
def test_form_fits_and_has_names_and_contrast(browser: Any, tried: Tried, model: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    for size, scheme in (("desk", "light"), ("phone", "dark")):
        with opened(browser, f"{tried.url}#/try/{model}", size, scheme, bypass_csp=True) as page:
            page.get_by_role("button", name="curl").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            found = axe.Axe().run(page).response["violations"]
            assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
