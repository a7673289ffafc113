"""The page's HTML: all that others have written is text, whatever it is, and its size has a bound."""

from html import unescape
from html.parser import HTMLParser

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.ingress.rest.home.models import Asking, Model, shown_models
from app.ingress.rest.home.page import MAX_BYTES, MAX_MODELS, Fact, Link, Server, render
from app.routing.table import ModelState, VersionEntry

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></details><h1>",
    "'; rm -rf / #",
    "&lt;b&gt;",
    "\u202e\u0000\ud800 \x1b[31m",
    "a" * 100_000,
)
TAGS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "div", "svg", "rect", "path"),
    *("h1", "p", "span", "main", "dl", "dt", "dd", "small", "nav", "ul", "li", "a", "h2", "h3", "details"),
    *("summary", "b", "table", "thead", "tbody", "tr", "th", "td", "pre", "footer"),
}
ASKING = Asking("curl -s", "http://h")


class Tags(HTMLParser):
    """Collects elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def server(name: str = "triton", links: tuple[Link, ...] = ()) -> Server:
    return Server(name, "1", "Ready", "good", [Fact("a", name, name)], links, [name])


def row(
    name: str, version: str = "1", state: str = "READY", reason: str = ""
) -> pb.RepositoryIndexResponse.ModelIndex:
    return pb.RepositoryIndexResponse.ModelIndex(name=name, version=version, state=state, reason=reason)


def entry(name: str, tensor: str = "IN") -> VersionEntry:
    config = mc.ModelConfig(name=name, backend=name, max_batch_size=4)
    config.input.add(name=tensor, data_type="TYPE_FP32", dims=[2])
    config.output.add(name=tensor, data_type="TYPE_FP32", dims=[-1])
    return VersionEntry(name, 1, ModelState.READY, config=config.SerializeToString())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_reasons_are_text(text: str) -> None:
    name = text.encode("utf-8", "replace").decode()
    rows = [row(name), row(name, "2", "UNAVAILABLE", name), row("x", "3", name, name)]
    models = shown_models(rows, [entry(name, name)], ASKING)
    found = Tags(render(server(text, (Link(text, text, text),)), models).decode()).found
    assert {tag for tag, _ in found} <= TAGS
    assert not [key for _, attributes in found for key in attributes if key.startswith("on")]
    assert all(attributes.get("class") in (None, *_CLASSES) for _, attributes in found)


_CLASSES = (
    *(
        "wide",
        "state good",
        "state bad",
        "state off",
        "facts",
        "links",
        "note",
        "models",
        "kind",
        "body",
        "io",
    ),
    *("why bad", "why off", "why good", "hint"),
)


def test_shell_reads_a_hostile_name_as_one_word() -> None:
    name = "a'$(touch /tmp/x)`b` \"c"
    (model,) = shown_models([row(name)], [entry(name, name)], ASKING)
    assert "/v2/models/a%27%24%28touch%20%2Ftmp%2Fx%29%60b%60%20%22c/infer " in model.request
    assert '\'{"inputs": [{"name": "a\'"\'"\'$(touch /tmp/x)' in model.request


def test_what_needs_a_person_comes_first_with_what_to_do() -> None:
    rows = [row("b"), row("a", "1", "UNAVAILABLE", "unable to find '/m/1/model.onnx'"), row("c", "", "")]
    models = shown_models(rows, [entry("b")], ASKING)
    assert [(model.name, model.state) for model in models] == [
        ("a", "Not ready"),
        ("b", "Ready"),
        ("c", "Not loaded"),
    ]
    page = unescape(render(server(), models).decode())
    assert "<details open><summary><span><b>a</b>" in page
    assert "unable to find '/m/1/model.onnx'" in page and "What to do:</b> Put the file" in page


def test_version_is_named_in_the_request_of_one_of_several() -> None:
    second = text_format.Parse(
        'name: "m" input { name: "I" data_type: TYPE_INT32 dims: 1 }', mc.ModelConfig()
    )
    entries = [VersionEntry("m", v, ModelState.READY, config=second.SerializeToString()) for v in (1, 2)]
    models = shown_models([row("m"), row("m", "2")], entries, ASKING)
    assert [model.request.split()[2] for model in models] == [
        f"http://h/v2/models/m/versions/{version}/infer" for version in (1, 2)
    ]


def test_size_has_a_bound() -> None:
    long = Model("n" * 900, "1", "Not ready", "bad", "k" * 900, "r" * 9000, "r" * 9000, request="c" * 3900)
    page = render(server(), [long] * 5000).decode()
    assert len(page) < MAX_BYTES + 40_000
    assert page.count("<details") <= MAX_MODELS
    assert f"{5000 - page.count('<details')} more are at /v2/models." in page


def test_no_models_are_told() -> None:
    assert "There are none." in render(server(), []).decode()
