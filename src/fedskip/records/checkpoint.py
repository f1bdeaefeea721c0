"""The runs of a setting on disk: one file, whole or absent, that names its own contents.

A row's bits depend on how many rows are computed with it, so the runs of a setting are saved and resumed
together, all at the same round. The file's name carries a digest of its bytes; the previous file is kept.
"""

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, contiguous_format

from fedskip.files import digest, write_bytes
from fedskip.input.errors import InputError

KEEP = 2


def save_checkpoint(
    folder: Path, setting: str, round: int, tensors: dict[str, Tensor], notes: dict[str, Any]
) -> Path:
    """Write the state of a setting after a round."""
    own = {name: t.detach().cpu().clone(memory_format=contiguous_format) for name, t in tensors.items()}
    content = save(own, metadata={"notes": json.dumps(notes)})
    path = folder / f"{setting}.{round:06d}.{digest(content)}.safetensors"
    write_bytes(path, content)
    for _, old in found(folder, setting)[:-KEEP]:
        old.unlink()
    return path


def found(folder: Path, setting: str) -> list[tuple[int, Path]]:
    """The checkpoints of a setting, oldest first."""
    name = re.compile(re.escape(setting) + r"\.(\d{6,})\.[0-9a-f]{16}\.safetensors")
    matches = ((name.fullmatch(path.name), path) for path in (folder.iterdir() if folder.exists() else ()))
    return sorted((int(match[1]), path) for match, path in matches if match)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and notes of a checkpoint whose bytes are what its name says."""
    content = path.read_bytes()
    if digest(content) != path.name.split(".")[-2]:
        raise InputError(
            "checkpoint", "is damaged: its bytes are not what its name says", str(path),
            "delete it to resume from the one before it, or from the start if there is none",
        )  # fmt: skip
    return load(content), _notes(content)


def read_notes(path: Path) -> dict[str, Any]:
    """The notes of a checkpoint alone, which stand before its tensors; nothing is checked."""
    with path.open("rb") as file:
        length = file.read(8)
        return _notes(length + file.read(int.from_bytes(length, "little")))


def _notes(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    notes: dict[str, Any] = json.loads(header["__metadata__"]["notes"])
    return notes
