"""report.html in a real browser, by `make test-all`: nothing scrolls sideways, fails or asks the network."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedskip.report.page import serve
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


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Tab:
    """A page, and all that went wrong on it or was asked of the network."""

    def __init__(self, browser: Any, url: str, **how: Any) -> None:
        self.page = browser.new_context(**how).new_page()
        self.failed: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.failed.append(said.text))
        self.page.on("pageerror", lambda error: self.failed.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def lines(self) -> list[str]:
        """The methods whose lines the first chart shows."""
        lines = "[...document.querySelector('.plot').querySelectorAll('.line')]"
        return self.page.evaluate(f"{lines}.map(one => one.dataset.method)")

    def wait(self, expression: str) -> None:
        """Until it is true; the page's policy keeps the browser's own way of waiting out."""
        deadline = time.monotonic() + 10
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_on_a_screen(
    browser: Any, page_of_a_study: Path, width: int, height: int, scheme: str
) -> None:
    url, size = page_of_a_study.as_uri(), {"width": width, "height": height}
    tab = Tab(browser, url, viewport=size, color_scheme=scheme)
    page = tab.page
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    assert page.evaluate(fits)
    assert page.evaluate(
        "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    )
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    for chart in page.locator(".plot").all():
        assert chart.bounding_box()["width"] <= width
    page.locator("select").first.select_option("drift_mean")
    page.locator("select").nth(1).select_option("bytes")
    name = page.locator(".plot").first.locator(".yname").text_content()
    assert name == "drift of the slots from their mean"
    assert page.evaluate(fits)
    assert tab.failed == []
    assert [asked for asked in tab.asked if not asked.startswith(("data:", "blob:"))] == [url]


def test_a_method_is_switched_off_and_on(browser: Any, page_of_a_study: Path) -> None:
    """In all charts at once; hovering shows numbers, and dragging zooms."""
    tab = Tab(browser, page_of_a_study.as_uri())
    page, before = tab.page, tab.lines()
    assert len(before) == len(set(before)) == 7
    button = page.get_by_role("button", name="SCAFFOLD+skip-5").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert tab.lines() == [name for name in before if name != "SCAFFOLD+skip-5"]
    assert page.locator("button[aria-pressed=false]").count() == 2, "one in each chart"
    box = page.locator(".plot").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "FedAvg" in page.locator(".tip").first.text_content(timeout=5000)
    zoomed = "document.querySelector('.plot .reset') !== null"
    assert not page.evaluate(zoomed)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    page.mouse.up()
    tab.wait(zoomed)
    button.click()
    assert tab.lines() == before
    assert page.evaluate(zoomed), "the zoom stays"
    page.locator(".reset").first.click()
    assert not page.evaluate(zoomed)
    assert tab.failed == []


def test_pictures_where_scripts_are_off(browser: Any, page_of_a_study: Path) -> None:
    tab = Tab(browser, page_of_a_study.as_uri(), java_script_enabled=False)
    assert tab.page.locator(".still").count() == 2, "the accuracy of each setting"
    assert all(picture.is_visible() for picture in tab.page.locator(".still").all())


def test_in_print(browser: Any, page_of_a_study: Path, tmp_path: Path) -> None:
    page = Tab(browser, page_of_a_study.as_uri()).page
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    page.emulate_media(media="print")
    assert not page.locator("details").first.is_visible()
    assert not page.locator(".choices").first.is_visible()
    assert page.locator(".plot").first.is_visible()
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_a_page_that_is_watched_is_renewed_and_keeps_what_was_chosen(
    browser: Any, tmp_path: Path
) -> None:
    made = study(tmp_path / "s", methods="fedavg, fedskip(period=2)", rounds=4, seeds=1)
    made.run()
    history = (made.out / "history.csv").read_text().splitlines()
    (made.out / "summary.csv").unlink()
    (made.out / "history.csv").write_text("\n".join(history[:-1]) + "\n")
    started: list[Any] = []
    threading.Thread(target=serve, args=(made.out, 0, started.append), daemon=True).start()
    while not started:
        time.sleep(0.01)
    tab = Tab(browser, started[0].url)
    page = tab.page
    points = "document.querySelectorAll('.plot circle').length"
    assert "Not finished" in page.content()
    tab.page.get_by_role("button", name="FedAvg").click()
    assert (tab.lines(), page.evaluate(points)) == (["FedSkip-2"], 1)
    (made.out / "history.csv").write_text("\n".join(history) + "\n")
    tab.wait(f"{points} === 2")
    assert tab.lines() == ["FedSkip-2"]
    assert tab.failed == []
    started[0].shutdown()
