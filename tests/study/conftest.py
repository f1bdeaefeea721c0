"""Studies of these tests write no report.html, which takes as long as to train them."""

import pytest


@pytest.fixture
def with_page() -> None:
    """For tests that look at the page."""


@pytest.fixture(autouse=True)
def without_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_page" not in request.fixturenames:
        monkeypatch.setattr("fedskip.study.study.write_report", lambda results: None)
