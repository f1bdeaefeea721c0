"""What all tests start from."""

import signal


def pytest_configure() -> None:
    """Signals that are heard: `nohup` and a shell's & have them ignored, which children would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)  # children have the default; the tests go on
