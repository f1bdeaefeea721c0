"""The page of a study on localhost, kept up to date while the study runs; it reads and never writes.

Nothing happens while nobody looks. A tab that is open asks for events; its connection looks at the folder
twice a second and says when there is something new. A page is rendered once for all tabs.
"""

from __future__ import annotations

import contextlib
import html
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedskip.input.errors import InputError
from fedskip.report.canvas import drawn
from fedskip.report.page import Pictures, figures, page
from fedskip.report.results import Results

LOOK, BEAT = 0.5, 15.0  # seconds from one look at the folder to the next, and between signs of life
PAUSE = 3.0  # times that a page takes to render, before the next one
HERE = ("127.0.0.1", "localhost")


class Watched:
    """The folder of a study, and its page."""

    def __init__(self, out: Path) -> None:
        self.out, self.nonce = out, secrets.token_urlsafe(16)
        self._lock = threading.Lock()  # matplotlib's settings are the process's
        self._rendered = ("", b"")
        self.took = 0.0  # seconds, the last time it was rendered

    def stamp(self) -> str:
        """Changes when the study has something new."""
        files = [self.out / name for name in ("study.yaml", "history.csv", "summary.csv")]
        known = []
        for file in files:
            with contextlib.suppress(OSError):  # it may just be written anew
                known.append(file.stat())
        return "-".join(f"{stat.st_mtime_ns:x}.{stat.st_size:x}" for stat in known) or "none"

    def page(self) -> bytes:
        with self._lock:
            stamp = self.stamp()
            if self._rendered[0] != stamp:
                began = time.monotonic()
                self._rendered = stamp, self._render(stamp).encode()
                self.took = time.monotonic() - began
            return self._rendered[1]

    def _render(self, stamp: str) -> str:
        script = (
            f'<script nonce="{self.nonce}">new EventSource("events").onmessage = event => '
            f'{{ if (event.data !== "{stamp}") location.reload(); }};</script>'
        )
        try:
            results, pictures = Results.read(self.out), Pictures()
            for place, _, words, axes in figures(results):
                pictures.setdefault(place, []).append((words, drawn(axes, "svg")))
            return page(results, pictures, script=script)
        except Exception as error:  # such as: there are no results yet; the next row may mend it
            words = html.escape(str(error))
            return f"<!doctype html><meta charset=utf-8><title>fedskip</title><p>{words}</p>{script}"

    def policy(self) -> str:
        """What the page may do: show itself, and listen to this server."""
        return (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'nonce-{self.nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'"
        )


class Handler(BaseHTTPRequestHandler):
    """Answers GET / and GET /events, and nothing else."""

    watched: Watched  # set by `serve`

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        if (host.rpartition(":")[0] or host).lower() not in HERE:
            self.send_error(403, "only localhost is answered")  # a name that someone pointed here
        elif self.path == "/":
            self._answer("text/html; charset=utf-8", self.watched.page())
        elif self.path == "/events":
            self._tell()
        else:
            self.send_error(404)

    def _answer(self, kind: str, content: bytes | None = None) -> None:
        self.send_response(200)
        headers = {
            "Content-Type": kind, "Content-Security-Policy": self.watched.policy(),
            "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
        }  # fmt: skip
        if content is not None:
            headers["Content-Length"] = str(len(content))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content or b"")

    def _tell(self) -> None:
        """Server-sent events: the stamp, now and whenever it changes."""
        self._answer("text/event-stream")
        told, beat = "", time.monotonic()
        try:
            while True:
                time.sleep(max(LOOK, PAUSE * self.watched.took))  # so that training has most of the machine
                stamp = self.watched.stamp()
                if stamp != told:
                    self.wfile.write(f"data: {stamp}\n\n".encode())
                    told = stamp
                elif time.monotonic() - beat > BEAT:
                    self.wfile.write(b": still here\n\n")  # fails where the tab is closed
                    beat = time.monotonic()
                self.wfile.flush()
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(out: Path, port: int, ready: Callable[[ThreadingHTTPServer], None] = lambda server: None) -> None:
    """Serve the page of a study until stopped; `ready` gets the server before its first request."""
    if not (out / "study.yaml").exists():
        raise InputError("out", "holds no study: there is no study.yaml", str(out))
    handler = type("Answers", (Handler,), {"watched": Watched(out)})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        fix = "choose another --port, or 0 for one that is free"
        raise InputError("--port", f"cannot be used ({error.strerror})", port, fix) from None
    except OverflowError:
        raise InputError("--port", "must be from 0 to 65535", port) from None
    server.daemon_threads = True
    with server:
        ready(server)
        server.serve_forever()
