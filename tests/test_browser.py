"""report.html in a real browser, by `make test-all`: nothing scrolls sideways, fails or asks the network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from studies import study

playwright = pytest.importorskip("playwright.sync_api", reason="only make test-all installs it")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
LONG = "scaffold(period=5), moon(mu=[0.25,0.125,5]), fedskip(period=[2,3])"


@pytest.fixture(scope="module")
def page_of_a_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "s"
    settings = [{"name": "a setting with a rather long name"}, {"name": "b", "local.lr": 0.5}]
    study(out, methods=f"fedavg, {LONG}", rounds=6, settings=settings, client_accuracy=True).run()
    return out / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_on_a_screen(page_of_a_study: Path, width: int, height: int, scheme: str) -> None:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        failed: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda said: failed.append(said.text))
        tab.on("pageerror", lambda error: failed.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page_of_a_study.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert failed == []
        assert [url for url in asked if not url.startswith("data:")] == [page_of_a_study.as_uri()]
        back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")
        browser.close()


def test_in_print(page_of_a_study: Path, tmp_path: Path) -> None:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(page_of_a_study.as_uri())
        tab.pdf(path=tmp_path / "report.pdf", format="A4")
        tab.emulate_media(media="print")
        assert not tab.evaluate("document.querySelector('details').checkVisibility()")
        browser.close()
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
