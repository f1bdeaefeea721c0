"""The page of a study on localhost, kept up to date while the study runs; it reads and never writes.

An open tab asks for events. Its connection looks at the folder twice a second and sends an event when there
is something new. A page is rendered once for all tabs; without a tab nothing is done.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedskip.errors import InputError, option
from fedskip.report.figure_io import to_bytes
from fedskip.report.findings import Findings
from fedskip.report.page import CURVES, Figure, Pictures, content, figures, page, policy
from fedskip.report.results import Results

LOOK, BEAT = 0.5, 15.0  # seconds between looks at the folder, and between signs of life
REST = 0.5  # share of the time that a page took, until the next look
STEADY = ("routing", "partition")  # figures that do not change while a study runs
HERE = ("127.0.0.1", "localhost")
# what a served page may do, beside what `policy` allows
SERVED_POLICY = "connect-src 'self'; base-uri 'none'; form-action 'none'"


class Watched:
    """The folder of a study, and its page."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._lock = threading.Lock()  # matplotlib's settings are the process's
        self._rendered = ("", "")
        self._drawn: dict[str, bytes] = {}  # figures that are drawn once, by the name of their file
        self.took = 0.0  # seconds, the last time it was rendered

    def stamp(self) -> str:
        """A text that changes when the study has something new."""
        stats = []
        for name in ("study.yaml", "history.csv", "summary.csv"):
            with contextlib.suppress(OSError):  # it may just be replaced
                stats.append((self.out / name).stat())
        return "-".join(f"{stat.st_mtime_ns:x}.{stat.st_size:x}" for stat in stats) or "none"

    def page(self) -> str:
        return page(str(self.out), self.main(), served=True)

    def main(self) -> str:
        """The page without its script, which stays when the page is renewed."""
        with self._lock:
            stamp = self.stamp()
            if self._rendered[0] != stamp:
                began = time.monotonic()
                self._rendered = stamp, self._render(stamp)
                self.took = time.monotonic() - began
            return self._rendered[1]

    def _picture(self, figure: Figure) -> bytes:
        if figure.kind not in STEADY:
            return to_bytes(figure.draw(), "svg")
        if figure.name not in self._drawn:
            self._drawn[figure.name] = to_bytes(figure.draw(), "svg")
        return self._drawn[figure.name]

    def _render(self, stamp: str) -> str:
        try:
            results, pictures = Results.read(self.out), Pictures()
            for figure in figures(results):
                if figure.kind in STEADY or (results.finished and figure.kind not in CURVES):
                    with contextlib.suppress(InputError):  # not measured, or not kept
                        picture = (figure.kind, figure.words, self._picture(figure))
                        pictures.setdefault(figure.place, []).append(picture)
            return content(Findings(results), pictures, stamp=stamp)
        except Exception as error:  # such as no results yet, which the next row changes
            return f'<main data-stamp="{stamp}"><p>{html.escape(str(error))}</p></main>'


class Handler(BaseHTTPRequestHandler):
    """Answers GET /, /main and /events, and nothing else."""

    watched: Watched  # set by `serve`

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if (host.rpartition(":")[0] or host).lower() not in HERE:
            self.send_error(403, "only localhost is answered")  # another name that leads here
        elif self.path == "/":
            self._answer("text/html; charset=utf-8", self.watched.page())
        elif self.path == "/main":
            self._answer("text/html; charset=utf-8", self.watched.main())
        elif self.path == "/events":
            self._send_events()
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str | None = None) -> None:
        self.send_response(200)
        headers = {
            "Content-Type": kind, "Content-Security-Policy": f"{policy()}; {SERVED_POLICY}",
            "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
        }  # fmt: skip
        content = (text or "").encode()
        if text is not None:
            headers["Content-Length"] = str(len(content))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _send_events(self) -> None:
        """Server-sent events: the stamp, now and whenever it changes."""
        self._answer("text/event-stream")
        sent, beat = "", time.monotonic()
        try:
            while True:
                # training is to have its share of the machine
                time.sleep(max(LOOK, REST * self.watched.took))
                stamp = self.watched.stamp()
                if stamp != sent:
                    self.wfile.write(f"data: {stamp}\n\n".encode())
                    sent = stamp
                elif time.monotonic() - beat > BEAT:
                    self.wfile.write(b": still here\n\n")  # fails where the tab is closed
                    beat = time.monotonic()
                self.wfile.flush()
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(
    out: Path, port: int, ready: Callable[[ThreadingHTTPServer], None] = lambda server: None
) -> None:
    """Serve the page of a study until stopped; `ready` gets the server before its first request."""
    if not (out / "study.yaml").exists():
        raise InputError("out", "holds no study: there is no study.yaml", str(out))
    handler = type("Answers", (Handler,), {"watched": Watched(out)})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        fix = "choose another, or 0 for one that is free"
        raise InputError(option("port"), f"cannot be used ({error.strerror})", port, fix) from None
    except OverflowError:
        raise InputError(option("port"), "must be from 0 to 65535", port) from None
    server.daemon_threads = True
    with server:
        ready(server)
        server.serve_forever()
