"""HTML pages that need no other file or server. Pure."""

from html import escape
from typing import Final

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --text: #1d1f21; --soft: #656a70;
  --line: #e2e3e0; --good: #2c7a4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --card: #1f2225; --text: #e6e7e8;
  --soft: #9aa0a6; --line: #34383c; --good: #67c08b; --bad: #f28b82; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 0 0 .75rem; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; margin-top: 1rem; overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.pair section { min-width: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
thead th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); }
.key::before { content: ""; display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem;
  background: currentcolor; margin-right: .4rem; }
"""


def html_page(title: str, style: str, body: str) -> str:
    """Return a page; `style` adds to what all pages have."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body><main>
<h1>{escape(title)}</h1>
{body}
</main></body>
</html>
"""


def section(title: str, body: str) -> str:
    """Return a card; "" without a body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""
