"""What the tests of trackers share."""

import pytest


@pytest.fixture(autouse=True)
def _quick(without_page: None) -> None:
    """No test of these looks at report.html."""
