"""What the form offers to copy really runs: by a shell, and as programs of both client libraries."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.browser import opened
from tests.server import ROOT
from tests.unit.app.console.static.pages.tried import Tried

CAT = ROOT / "tests" / "data" / "cat.jpg"
KINDS = {"curl": "curl", "Python (tritonclient)": "python", "Python (nereid_client)": "python"}
# What is written into the form, and what every snippet prints.
CASES: Mapping[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "identity_bool": ({"Values of INPUT0": "[true, false]"}, ("false",)),
    "identity_int64": ({"Values of INPUT0": "[9007199254740993]"}, ("9007199254740993",)),
    "identity_fp64": ({"Values of INPUT0": "[0.25, -2.5]"}, ("-2.5",)),
    "identity_bf16": ({"Values of INPUT0": "[0.5, -3]"}, ()),
    "identity_fp16": ({"Values of INPUT0": "[0.5, -3]"}, ()),
    "identity_bytes": ({"Text of INPUT0": "it's <b>\\n"}, ("it's",)),
    "identity_fp32": ({"Dimension 1 of INPUT0": "2000"}, ()),
    "means": ({"Picture": str(CAT)}, ()),
    "picture_file": ({"Picture": str(CAT)}, ("0.75",)),
    "sums": ({"Values of INPUT": "[[41]]"}, ("41",)),
    "words": ({"Text of prompt": "one two"}, ("one ", "two ")),
}


def filled(page: Any, fields: Mapping[str, str]) -> None:
    for label, text in fields.items():
        field = page.get_by_label(label, exact=True)
        if label == "Picture":
            field.set_input_files(text)
            page.get_by_role("img").first.wait_for()
        else:
            field.fill(text)
            field.press("Tab")


def copied(page: Any, kind: str, folder: Path) -> str:
    """Return the text of a snippet; the files that it reads are saved beside it."""
    page.get_by_role("button", name=kind, exact=True).click()
    text: str = page.locator(".copyable pre").inner_text()
    for save in page.get_by_role("button", name="Save ").all():
        with page.expect_download() as saved:
            save.click()
        saved.value.save_as(folder / saved.value.suggested_filename)
    return text


@pytest.mark.parametrize("kind", ["curl", "Python (openai)"])
def test_snippets_of_chats_run(browser: Any, tried: Tried, kind: str) -> None:
    pytest.importorskip("openai")
    with opened(browser, f"{tried.url}#/try/words") as page:
        page.get_by_text("Chat, by the OpenAI API").click()
        chat = page.locator("details.card")
        chat.get_by_role("button", name=kind).click()
        text = chat.locator(".copyable pre").inner_text()
    command = ["bash", "-c", text] if kind == "curl" else [sys.executable, "-c", text]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0 and "Hello" in ran.stdout, f"{text}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("model", CASES)
def test_snippets_run(browser: Any, tried: Tried, model: str, tmp_path: Path) -> None:
    fields, expected = CASES[model]
    (tmp_path / "cat.jpg").write_bytes(CAT.read_bytes())
    with opened(browser, f"{tried.url}#/try/{model}", accept_downloads=True) as page:
        filled(page, fields)
        texts = {kind: copied(page, kind, tmp_path) for kind in KINDS}
    grpc = f"{tried.server.grpc_url}"
    for kind, text in texts.items():
        program = text.replace("127.0.0.1:8001", grpc)  # the port that servers have unless told otherwise
        command = ["bash", "-c", program] if KINDS[kind] == "curl" else [sys.executable, "-c", program]
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "client"), *sys.path])}
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | path,
            capture_output=True,
            errors="replace",
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, f"{kind}: {text}\n{ran.stderr}"
        assert '"error"' not in ran.stdout
        printed = ran.stdout.lower() if model == "identity_bool" else ran.stdout
        assert all(part in printed for part in expected), f"{kind}: {text}\n{ran.stdout}"
