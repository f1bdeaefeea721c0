"""The runs of a setting on disk: one file, whole or absent, that names its own contents.

A row's bits depend on how many rows are computed with it, so the runs of a setting are saved and resumed
together, all at the same round. The file's name carries a digest of its bytes; the previous file is kept.
It also holds what the setting has recorded so far: history.csv may be lost.
"""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, contiguous_format

from fedskip.files import digest, write_bytes
from fedskip.input.errors import InputError

KEEP = 2
RECORDED = "recorded"  # among the tensors, all others of which have a run's name before theirs


def save_checkpoint(
    folder: Path,
    setting: str,
    round: int,
    tensors: dict[str, Tensor],
    notes: dict[str, Any],
    history: str,
) -> Path:
    """Write the state of a setting after a round, and what it has recorded so far."""
    text = torch.frombuffer(bytearray(zlib.compress(history.encode(), 1)), dtype=torch.uint8)
    tensors = {**tensors, RECORDED: text}
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
        raise damaged(path, "its bytes are not what its name says")
    return load(content), _notes(path, content)


def read_notes(path: Path) -> dict[str, Any]:
    """The notes of a checkpoint alone, which stand before its tensors; those are not looked at."""
    with path.open("rb") as file:
        length = file.read(8)
        header = min(int.from_bytes(length, "little"), path.stat().st_size)
        return _notes(path, length + file.read(header))


def read_history(path: Path) -> str | None:
    """What had been recorded when a checkpoint was written; None if that is older than this was kept."""
    try:
        with safe_open(path, framework="pt") as file:
            if RECORDED not in file.keys():  # noqa: SIM118
                return None
            return zlib.decompress(file.get_tensor(RECORDED).numpy().tobytes()).decode()
    except (SafetensorError, zlib.error, ValueError):
        raise damaged(path, "its history cannot be read") from None


def damaged(path: Path, why: str) -> InputError:
    fix = "delete it to resume from the one before it, or from the start if there is none"
    return InputError("checkpoint", f"is damaged: {why}", str(path), fix)


def _notes(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        notes: dict[str, Any] = json.loads(header["__metadata__"]["notes"])
    except (ValueError, LookupError, TypeError):
        raise damaged(path, "its header cannot be read") from None
    return notes
