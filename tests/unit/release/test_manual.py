"""The manual: no page is missing in its navigation, links stay whole, and it is served as it was built."""

import importlib.util
from pathlib import Path

import pytest

from app.ingress.rest.front import HttpFront
from app.ingress.rest.home.site import Site
from app.ingress.rest.openapi import management
from release.manual import POLICY_FILE, SECTIONS, build, navigation, pages, policy, slug, stage
from tests.browser import chromium, opened
from tests.server import ROOT
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.rest.openapi.test_home import asked
from tests.unit.app.ingress.running_fronts import Running


def test_no_page_is_missing() -> None:
    placed = [name for names in pages().values() for name in names]
    written = {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")}
    assert written - set(placed) == set()
    assert len(placed) == len(set(placed))
    for section, (folder, _) in SECTIONS.items():
        here = {str(page.relative_to(ROOT)) for page in ROOT.glob(f"{folder}/**/*.md")}
        assert here <= set(pages()[section]) and here
    assert navigation()[0] == {"Nereid": "README.md"}


def test_page_without_a_line_comes_behind_the_others(tmp_path: Path) -> None:
    (tmp_path / "docs" / "use").mkdir(parents=True)
    (tmp_path / "docs" / "README.md").write_text("## To use a server\n\n| [use/b.md](use/b.md) | b |\n")
    for name in ("a", "b", "c"):
        (tmp_path / "docs" / "use" / f"{name}.md").write_text(f"# {name}\n")
    assert pages(tmp_path)["Use"] == ["docs/use/b.md", "docs/use/a.md", "docs/use/c.md"]


def test_links_to_other_files_become_text(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "docs" / "use").mkdir(parents=True)
    (root / "release").mkdir()
    (root / "docs" / "README.md").write_text("")
    (root / "README.md").write_text(
        "[a page](docs/use/a.md#x) [code](app/x.py) [a folder](docs) ![picture](docs/a.svg) "
        "[web](https://x) [h](#h)"
    )
    (root / "docs" / "use" / "a.md").write_text("# a")
    stage(tmp_path / "staged", root)
    text = (tmp_path / "staged" / "README.md").read_text()
    assert text == (
        "[a page](docs/use/a.md#x) code [a folder](docs/README.md) ![picture](docs/a.svg) "
        "[web](https://x) [h](#h)"
    )


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("A table, a text", "a-table-a-text"), ("`nereid dev`: one", "nereid-dev-one"), ("A - b", "a---b")],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading, "-") == anchor


def site_in(folder: Path) -> Path:
    (folder / "docs").mkdir(parents=True)
    (folder / "index.html").write_text("<script>one()</script><p>start")
    (folder / "docs" / "index.html").write_text("<script>two()</script>")
    (folder / "style.css").write_text("p {}")
    (folder / POLICY_FILE).write_text(policy(folder))
    return folder


async def test_site_is_served_under_a_path_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_in(tmp_path / "site")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(management, "manual_directory", lambda: site)

    for path, status, kind in (
        ("/manual/", 200, "text/html; charset=utf-8"),
        ("/manual/docs/", 200, "text/html; charset=utf-8"),
        ("/manual/style.css", 200, "text/css; charset=utf-8"),
        ("/manual", 307, ""),
        ("/manual/../secret", 404, "application/json"),
        ("/manual/%2e%2e/secret", 404, "application/json"),
        ("/manual//etc/passwd", 404, "application/json"),
        (f"/manual/{POLICY_FILE}", 404, "application/json"),
    ):
        front = HttpFront(FakeService())
        answer = await asked(front, path=path)
        assert (answer[0], answer[1].get("content-type", "")) == (status, kind), path
        if status == 200:
            told = answer[1]["content-security-policy"]
            assert "script-src 'self' 'sha256-" in told and told.count("sha256") == 2
    _, _, body = await asked(HttpFront(FakeService()), "Accept: text/html")
    assert b'href="/manual/"' in body


async def test_there_is_no_manual_where_none_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "manual_directory", lambda: tmp_path / "absent")
    assert not Site(tmp_path / "absent")

    assert (await asked(HttpFront(FakeService()), path="/manual/"))[0] == 404
    assert b"/manual/" not in (await asked(HttpFront(FakeService()), "Accept: text/html"))[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra `docs`")
def test_manual_is_built_strictly_and_searched_in_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    build(site)
    monkeypatch.setattr(management, "manual_directory", lambda: site)
    running = Running(tmp_path, service=FakeService())
    try:
        with chromium() as browser, opened(browser, f"http://{running.http}/manual/") as page:
            page.get_by_placeholder("Search").click()
            page.keyboard.type("sequences")
            page.get_by_role("link", name="sequences").first.wait_for()
    finally:
        running.close()
