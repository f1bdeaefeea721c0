"""What all tests start from."""

import gc
import signal

import pytest


def pytest_configure() -> None:
    """Children inherit signals that are ignored, as `nohup` and a shell's & have them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)  # children have the default; the tests go on


def pytest_collection_finish() -> None:
    """A study collects garbage after each setting. That is quick without the libraries' objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies write no report.html, which takes longer than to train a small one."""
    monkeypatch.setattr("fedskip.study.study.write_report", lambda results: None)
