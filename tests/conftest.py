"""What all tests start from."""

import signal


def pytest_configure() -> None:
    """Signals as a terminal has them: `nohup` and a shell's & have them ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
