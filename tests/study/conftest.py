"""What the tests of studies share."""

import pytest


@pytest.fixture
def with_page() -> None:
    """For tests that look at report.html."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest) -> None:
    if "with_page" not in request.fixturenames:
        request.getfixturevalue("without_page")
