"""The manual: the repository's pages as a site with search, which needs no other server.

    python -m release.manual build/manual

Pages keep their places, so that links between them hold; links to other files become text. The order of pages
is that of the tables in docs/README.md, and a page of a folder that has no line there comes behind those that
have one. A link or an anchor that leads nowhere fails the build. Needs the extra `docs`.
"""

import base64
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SECTIONS: Final = {
    "Start": ("docs/start", "To start"),
    "Use": ("docs/use", "To use a server"),
    "Operate": ("docs/operate", "To operate a server"),
    "Models": ("docs/models", "To write a model repository"),
    "Develop": ("docs/develop", "To develop Nereid"),
}
"""Sections by their readers: the folder of their pages, and the heading of their table in docs/README.md."""
FURTHER: Final = {
    "Use": ("examples/*/README.md", "model_repository/README.md"),
    "Operate": ("SECURITY.md", "CHANGELOG.md"),
    "Develop": ("benchmarks/results/*.md",),
}
"""Pages outside of docs that have no line there."""
POLICY_FILE: Final = "policy.txt"
"""The site's Content-Security-Policy, which the server sends, with digests of the pages' own scripts."""
_LINK: Final = re.compile(r"(?<!\!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_ASSETS: Final = (".md", ".svg", ".png")


def pages(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the pages of each section, in the order of the site."""
    index = (root / "docs" / "README.md").read_text()
    found: dict[str, list[str]] = {}
    for section, (folder, heading) in SECTIONS.items():
        first = ["docs/README.md"] if section == "Start" else []
        listed = [*first, *_listed(index, heading)]
        further = [name for pattern in FURTHER.get(section, ()) for name in _names(root, pattern)]
        all_names = [*listed, *_names(root, f"{folder}/**/*.md"), *further]
        found[section] = list(dict.fromkeys(all_names))
    return found


def _listed(index: str, heading: str) -> Iterator[str]:
    """Yield the pages that the table under a heading has."""
    table = index.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    for link in re.findall(r"^\| \[[^\]]+\]\(([^)#]+\.md)\)", table, re.MULTILINE):
        yield os.path.normpath(f"docs/{link}")


def _names(root: Path, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern))


def stage(source: Path, root: Path = ROOT) -> list[str]:
    """Copy the pages and their pictures to where the generator reads them; return the pages."""
    names = ["README.md", *(name for section in pages(root).values() for name in section)]
    shutil.rmtree(source, ignore_errors=True)
    for name in names:
        place = source / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_LINK.sub(partial(_linked, page=name, names=names), (root / name).read_text()))
    for path in [each for kind in ("*.svg", "*.png") for each in (root / "docs").rglob(kind)]:
        shutil.copy(path, source / path.relative_to(root))
    shutil.copy(Path(__file__).parent / "manual.css", source)
    return names


def _linked(match: re.Match[str], page: str, names: list[str]) -> str:
    """Return a link to a page as it is, and the text alone of a link to another file."""
    target = os.path.normpath(os.path.join(os.path.dirname(page), match[2]))
    if target in names or target.endswith(_ASSETS[1:]):
        return match[0]
    if f"{target}/README.md" in names:
        return f"[{match[1]}]({match[2].rstrip('/')}/README.md{match[3] or ''})"
    return match[1]


def slug(heading: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def navigation(root: Path = ROOT) -> list[Any]:
    """Return the site's navigation: its first page, and the sections."""
    return [{"Nereid": "README.md"}, *({section: names} for section, names in pages(root).items())]


def configuration(source: Path, site: Path) -> dict[str, Any]:
    """Return the configuration of the generator."""
    palette = [
        {
            "media": f"(prefers-color-scheme: {scheme})",
            "scheme": look,
            "primary": "custom",
            "accent": "custom",
            "toggle": {"icon": f"material/weather-{icon}", "name": f"Switch to {other}"},
        }
        for scheme, look, icon, other in (
            ("light", "default", "sunny", "dark"),
            ("dark", "slate", "night", "light"),
        )
    ]
    features = [
        "navigation.tabs",
        "navigation.top",
        "navigation.indexes",
        "content.code.copy",
        "search.highlight",
    ]
    checked = {"not_found": "warn", "anchors": "warn", "absolute_links": "warn", "unrecognized_links": "warn"}
    return {
        "site_name": "Nereid",
        "docs_dir": str(source),
        "site_dir": str(site),
        "use_directory_urls": False,
        "strict": True,
        # No fonts of other servers; pictures of the palette's icons are in the pages.
        "theme": {"name": "material", "font": False, "palette": palette, "features": features},
        "plugins": ["search"],
        "nav": navigation(),
        "validation": {"nav": {"omitted_files": "warn", "not_found": "warn"}, "links": checked},
        "markdown_extensions": [
            {"toc": {"slugify": slug, "permalink": True}},
            "tables",
            "md_in_html",
            *_CODE,
        ],
        "extra_css": ["manual.css"],
        "extra": {"generator": False},
    }


_CODE: Final = [
    "pymdownx.superfences",
    {"pymdownx.highlight": {"use_pygments": True}},
    "pymdownx.inlinehilite",
]


def build(site: Path) -> None:
    """Build the site into a directory, which is emptied before.

    Raises:
        Abort: a link, an anchor or a page is missing; the generator has said which.
    """
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    work = site.with_name(f"{site.name}-source")
    stage(work / "pages")
    (work / "mkdocs.yml").write_text("site_name: Nereid\n")
    build_site(load_config(str(work / "mkdocs.yml"), **configuration(work / "pages", site)))
    # Of no use without an address, and with the time of the build; languages other than English.
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        (site / name).unlink(missing_ok=True)
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)
    for path in site.rglob("*.map"):
        path.unlink()
    (site / POLICY_FILE).write_text(policy(site))
    shutil.rmtree(work)


def policy(site: Path) -> str:
    """Return the policy of a built site: nothing of other servers, and no script in a page but its own."""
    scripts = {script for page in site.rglob("*.html") for script in _SCRIPT.findall(page.read_bytes())}
    digests = sorted(base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts)
    own = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'self'; script-src 'self' {own}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "manual").resolve())
