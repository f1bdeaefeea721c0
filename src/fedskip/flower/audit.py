"""What was sent and received, on each side: a line of JSON for each message, only ever added to."""

import json
import time
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"


class Audit:
    """The log of one side; without a file, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def note(self, way: str, kind: str, **facts: Any) -> None:
        """One message: `way` is sent or received, `kind` what Flower calls its type."""
        if self.path is None:
            return
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "way": way, "kind": kind, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
