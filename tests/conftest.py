"""What all tests start from."""

import signal


def pytest_configure() -> None:
    """Signals as a terminal leaves them: `nohup` and a shell's & have them ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
