"""The page at `/` with the example models: its first requests work as they stand."""

import re
import subprocess
import urllib.request
from html import unescape

import pytest

from tests.contract.conftest import Addresses


def page(server: Addresses) -> str:
    asked = urllib.request.Request(f"http://{server.http}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(answer.read().decode())


def commands(text: str) -> dict[str, str]:
    """The first request of each model that has one, by name; of several versions the last."""
    found = {}
    for name, body in re.findall(r"<b>([^<]*)</b>(.*?)</details>", text, re.DOTALL):
        if command := re.search(r"<pre[^>]*>(.*?)</pre>", body, re.DOTALL):
            found[unescape(name)] = unescape(command[1])
    return found


EXAMPLES = (
    *("simple", "simple_int8", "simple_string", "simple_identity", "identity_fp32", "custom_identity_int32"),
    *("repeat_int32", "square_int32", "efficientnet_lite0_onnx", "efficientnet_ensemble", "image_preprocess"),
    *("simple_sequence", "simple_dyna_sequence", "simple_string_dyna_sequence", "silero_vad", "centerface"),
    *("language", "magika", "ocr_ensemble", "rapidocr_det", "rapidocr_rec", "wine_forest", "faces"),
)


@pytest.fixture(scope="module")
def first_requests(server: Addresses) -> dict[str, str]:
    return commands(page(server))


@pytest.mark.parametrize("model", EXAMPLES)
def test_first_request_works_as_it_stands(first_requests: dict[str, str], model: str) -> None:
    # That of a program that is pasted, but for the status, which curl then shows, and the part cut off.
    command = first_requests[model].replace("curl -s", r"curl -s -w '\n%{http_code}'", 1)
    command = re.sub(r" \| head -c \d+$", "", command)
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60)
    assert done.stdout.endswith(b"\n200"), (command, done.stdout[-500:], done.stderr)


def test_page_has_every_model_with_its_state(server: Addresses) -> None:
    text = page(server)
    assert all(f"<b>{model}</b>" in text for model in EXAMPLES)
    assert '<span class="state good">Ready</span>' in text
