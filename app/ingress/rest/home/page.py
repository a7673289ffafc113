"""The page's HTML. Pure: everything that is not written here is text, and is escaped."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from app.core.errors import shortened
from app.ingress.rest.home.models import Model, Tensor

MAX_BYTES: Final = 2 << 20
"""Bytes of the models' part; the page says how many more there are."""
MAX_MODELS: Final = 500
_MAX_NAME: Final = 200
_MAX_REASON: Final = 2000
_MAX_TENSORS: Final = 32
_MAX_COMMAND: Final = 4000
_OPEN: Final = 4
"""Models whose details are open from the start, of those that need a person; all of a short list are."""
_STYLE: Final = files(__package__).joinpath("page.css").read_text()
_SHAPES: Final = (
    '<rect width="48" height="48" rx="11" fill="#0b6b7c"/><path d="M8 19c5-7 11-7 16 0s11 7 16 0M8 31'
    'c5-7 11-7 16 0s11 7 16 0" fill="none" stroke="#fff" stroke-width="4" stroke-linecap="round"/>'
)
_ICON: Final = b64encode(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48">{_SHAPES}</svg>'.encode()
).decode()
_DIGEST: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}


class Link(NamedTuple):
    """Where the page leads to."""

    title: str
    href: str
    about: str


class Fact(NamedTuple):
    """What the page says of the server; `more` is in small print below."""

    title: str
    text: str
    more: str = ""


class Server(NamedTuple):
    """What the page shows besides models.

    Attributes:
        name: `--id`.
        version: Nereid's.
        state, look: whether it is ready, in words; see `Model`.
        facts, links: about it.
        notes: sentences above the models.
    """

    name: str
    version: str
    state: str
    look: str
    facts: Sequence[Fact]
    links: Sequence[Link]
    notes: Sequence[str] = ()


def render(server: Server, models: Sequence[Model]) -> bytes:
    """Return the page as UTF-8: some KB, and up to `MAX_BYTES` of models."""
    title = "Nereid" if server.name in ("", "nereid", "triton") else f"{server.name} · Nereid"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f'<title>{_text(title)}</title>\n<link rel="icon" href="data:image/svg+xml;base64,{_ICON}">\n',
        f"<style>{_STYLE}</style>\n</head>\n<body>\n",
        *_header(server, title),
        '<main class="wide">\n',
        *_facts(server.facts),
        *_links(server.links),
        f"<h2>Models</h2>\n{''.join(f'<p class=note>{_text(note)}</p>' for note in server.notes)}",
        *_models(models),
        "</main>\n",
        '<footer class="wide">As of the moment this page was asked for. Reload it for another.</footer>\n',
        "</body>\n</html>\n",
    ]
    return "".join(parts).encode()


def _text(text: str, limit: int = _MAX_NAME) -> str:
    return escape(shortened(text, limit))


def _header(server: Server, title: str) -> Iterator[str]:
    yield f'<header><div class="wide"><svg viewBox="0 0 48 48" aria-hidden="true">{_SHAPES}</svg>'
    yield f"<div><h1>{_text(title)}</h1><p>Version {_text(server.version)}</p></div>"
    yield f'<span class="state {server.look}">{_text(server.state)}</span></div></header>\n'


def _facts(facts: Iterable[Fact]) -> Iterator[str]:
    yield '<dl class="facts">\n'
    for fact in facts:
        more = f"<small>{_text(fact.more)}</small>" if fact.more else ""
        yield f"<div><dt>{_text(fact.title)}</dt><dd>{_text(fact.text)}{more}</dd></div>\n"
    yield "</dl>\n"


def _links(links: Iterable[Link]) -> Iterator[str]:
    yield '<nav aria-label="Pages of this server"><ul class="links">\n'
    for link in links:
        about = f"<span>{_text(link.about)}</span>"
        yield f'<li><a href="{_text(link.href, _MAX_REASON)}">{_text(link.title)}{about}</a></li>\n'
    yield "</ul></nav>\n"


def _models(models: Sequence[Model]) -> Iterator[str]:
    if not models:
        yield '<p class="note">There are none.</p>\n'
        return
    yield '<div class="models">\n'
    size = shown = 0
    for number, model in enumerate(models[:MAX_MODELS]):
        text = "".join(_model(model, len(models) <= _OPEN or (model.look == "bad" and number < _OPEN)))
        size += len(text)
        if size > MAX_BYTES:
            break
        shown += 1
        yield text
    yield "</div>\n"
    if shown < len(models):
        yield f'<p class="note">{len(models) - shown} more are at /v2/models.</p>\n'


def _model(model: Model, is_open: bool) -> Iterator[str]:
    version = f"version {_text(model.version)}" if model.version else ""
    about = " · ".join(filter(None, (version, _text(model.kind))))
    yield f"<details{' open' if is_open else ''}><summary><span><b>{_text(model.name)}</b>"
    yield f'<span class="kind">{about}</span></span>'
    yield f'<span class="state {model.look}">{_text(model.state)}</span></summary><div class="body">'
    if model.reason or model.remedy:
        yield f'<div class="why {model.look}">'
        if model.reason:
            yield f"<p><b>Why:</b> {_text(model.reason, _MAX_REASON)}</p>"
        if model.remedy:
            yield f"<p><b>What to do:</b> {_text(model.remedy, _MAX_REASON)}</p>"
        yield "</div>"
    if model.inputs or model.outputs:
        yield f'<div class="io">{_tensors("Inputs", model.inputs)}{_tensors("Outputs", model.outputs)}</div>'
    if 0 < len(model.request) <= _MAX_COMMAND:
        yield f'<div><h3>A first request</h3><pre tabindex="0">{escape(model.request)}</pre>'
        yield '<p class="hint">One click selects it all.</p></div>'
    elif not model.reason and not model.remedy and not model.inputs:
        yield '<p class="note">Nothing more is known of it.</p>'
    yield "</div></details>\n"


def _tensors(title: str, tensors: Sequence[Tensor]) -> str:
    rows = "".join(
        f"<tr><td>{_text(each.name)}{' <small>optional</small>' if each.optional else ''}</td>"
        f"<td>{_text(each.datatype)}</td><td>{_text(each.shape)}</td></tr>"
        for each in tensors[:_MAX_TENSORS]
    )
    if len(tensors) > _MAX_TENSORS:
        rows += f"<tr><td colspan=3>{len(tensors) - _MAX_TENSORS} more</td></tr>"
    head = f"<tr><th>{title}</th><th>type</th><th>shape</th></tr>"
    return f"<div><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
