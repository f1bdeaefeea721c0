"""Checkpoints: the state of a setting's runs after a round, in one file that is complete or absent.

A row's bits depend on how many rows are computed with it. So runs that train together are saved and resumed
together, all at the same round: the whole setting, or each of its groups where they are at different rounds.
The file's name holds a digest of its bytes, and the previous file is kept. A checkpoint also holds what its
runs have recorded so far, as history.csv may be lost.
"""

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, contiguous_format

from fedskip.errors import InputError
from fedskip.files import digest, write_bytes

KEEP = 2
CHECKPOINTS = 20  # in a setting, unless `checkpoint_every` says otherwise
GROUP = "~g"  # before the number of a group
RECORDED = "recorded"  # among the tensors, all others of which have a run's name before theirs


class Newest(NamedTuple):
    """The newest file of some runs: of a whole setting, or of one of its groups."""

    round: int
    path: Path | None  # None: there is none, and the round is 0
    group: int | None = None  # its number; None: all of them


def interval(rounds: int, every: int | None) -> int:
    """Rounds from one checkpoint to the next; `every`: as the study says."""
    return every or max(1, rounds // CHECKPOINTS)


def save_checkpoint(
    folder: Path,
    setting: str,
    round: int,
    tensors: dict[str, Tensor],
    notes: dict[str, Any],
    history: str,
) -> Path:
    """Write the state of a setting after a round, and what it has recorded so far."""
    return write_checkpoint(folder, setting, round, pack(tensors, notes, history))


def pack(tensors: dict[str, Tensor], notes: dict[str, Any], history: str) -> bytes:
    """The content of a checkpoint."""
    text = torch.frombuffer(bytearray(zlib.compress(history.encode(), 1)), dtype=torch.uint8)
    tensors = {**tensors, RECORDED: text}
    own = {
        name: t.detach().cpu().clone(memory_format=contiguous_format) for name, t in tensors.items()
    }
    return save(own, metadata={"notes": json.dumps(notes)})


def write_checkpoint(folder: Path, key: str, round: int, content: bytes) -> Path:
    """Write a checkpoint of a setting or a group; files that it replaces are removed."""
    path = folder / f"{key}.{round:06d}.{digest(content)}.safetensors"
    write_bytes(path, content)
    groups = _by_group(folder, key)
    older = groups.pop(None)[:-KEEP]
    older += [file for files in groups.values() if files[-1][0] <= round for file in files]
    for _, old in older:
        old.unlink()
    return path


def group_key(setting: str, group: int, groups: int) -> str:
    """How the files of a group are called; no setting can have a name with a tilde."""
    return f"{setting}{GROUP}{group}of{groups}"


def list_checkpoints(folder: Path, key: str) -> list[tuple[int, Path]]:
    """The checkpoints of a setting or of one of its groups, oldest first."""
    return _by_group(folder, key).get(None, [])


def newest(folder: Path, setting: str) -> list[Newest]:
    """The newest files that together hold all runs of a setting: one, or one for each group."""
    groups = _by_group(folder, setting)
    files = groups.pop(None, [])
    whole = Newest(*files[-1]) if files else Newest(0, None)
    newer = {which: files[-1] for which, files in groups.items() if files[-1][0] > whole.round}
    if not newer:
        return [whole]
    number = max(newer, key=lambda which: newer[which][0])[1]
    return [
        Newest(*newer[index, number], index)
        if (index, number) in newer
        else whole._replace(group=index)
        for index in range(number)
    ]


def _by_group(folder: Path, key: str) -> dict[Any, list[tuple[int, Path]]]:
    """The files of a key and, by number and how many there are, of its groups, oldest first; None: its own."""
    group = rf"(?:{GROUP}(\d+)of(\d+))?"
    name = re.compile(re.escape(key) + group + r"\.(\d{6,})\.[0-9a-f]{16}\.safetensors")
    found: dict[Any, list[tuple[int, Path]]] = {}
    for file in os.listdir(folder) if folder.exists() else ():
        if file.startswith(key) and (match := name.fullmatch(file)):  # there may be thousands
            which = None if match[1] is None else (int(match[1]), int(match[2]))
            found.setdefault(which, []).append((int(match[3]), folder / file))
    return {which: sorted(files) for which, files in found.items()}


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and notes of a checkpoint whose bytes are what its name says."""
    return unpack(path, path.read_bytes())


def unpack(path: Path, content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same from bytes that were read elsewhere."""
    if digest(content) != path.name.split(".")[-2]:
        raise damaged(path, "its bytes are not what its name says")
    return load(content), _notes(path, content)


def read_notes(path: Path) -> dict[str, Any]:
    """The notes of a checkpoint alone, which stand before its tensors; those are not looked at."""
    with path.open("rb") as file:
        length = file.read(8)
        header = min(int.from_bytes(length, "little"), path.stat().st_size)
        return _notes(path, length + file.read(header))


def read_history(path: Path) -> str:
    """What had been recorded when a checkpoint was written."""
    try:
        with safe_open(path, framework="pt") as file:
            return unpack_history(file.get_tensor(RECORDED))
    except (SafetensorError, zlib.error, ValueError):
        raise damaged(path, "its history cannot be read") from None


def unpack_history(recorded: Tensor) -> str:
    """The history that a checkpoint has among its tensors."""
    return zlib.decompress(recorded.numpy().tobytes()).decode()


def damaged(path: Path, why: str) -> InputError:
    fix = "delete it: resume goes on from the one before it, or says what would be lost"
    return InputError("checkpoint", f"is damaged: {why}", str(path), fix)


def _notes(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        notes: dict[str, Any] = json.loads(header["__metadata__"]["notes"])
    except (ValueError, LookupError, TypeError):
        raise damaged(path, "its header cannot be read") from None
    return notes
