"""What a client remembers, in files of its own: a version for each of the last two rounds that matter.

A reply may be lost after the client has trained. So the server names the last round whose reply it has
accepted, and the client goes on from what it remembered then: a lost reply or a replay changes nothing.
"""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedskip.files import clear_parts, digest, write_bytes
from fedskip.input.errors import InputError, require
from fedskip.methods.base import State

_FILE = re.compile(r"(\d{6,})\.([0-9a-f]{16})\.safetensors")
_RUN = re.compile(r"[0-9a-f]{16,64}")


class Versions:
    """The versions that a client has of its memory in one run."""

    def __init__(self, state_dir: Path, run: str) -> None:
        """`run`: what the server calls it; it becomes the name of a folder."""
        require("the run's name", bool(_RUN.fullmatch(run)), "must be 16 hexadecimal digits or more", run)
        self.folder = state_dir / run
        clear_parts(self.folder)

    def load(self, round: int) -> State:
        """What was remembered after a round; nothing before the first visit, which is round 0."""
        if round == 0:
            return {}
        path = self._found().get(round)
        if path is None:
            rule = f"has no memory of round {round}, which the server has accepted"
            raise InputError(str(self.folder), rule, fix="bring back the state-dir as it was")
        content = path.read_bytes()
        try:
            if digest(content) != path.name.split(".")[1]:
                raise ValueError("its bytes are not what its name says")
            return load(content)
        except (SafetensorError, ValueError) as error:
            fix = "bring back the state-dir as it was"
            raise InputError(str(path), f"is damaged ({error})", fix=fix) from error

    def save(self, round: int, state: State, accepted: int) -> None:
        """Keep what is remembered after a round beside what the server has accepted, and drop the rest."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
        path = self.folder / f"{round:06d}.{digest(content)}.safetensors"
        write_bytes(path, content)
        for other, old in self._all():
            replaced = other == round and old != path
            if replaced or (other < round and other != accepted):  # a later one may still be accepted
                old.unlink()

    def _found(self) -> dict[int, Path]:
        return dict(self._all())

    def _all(self) -> list[tuple[int, Path]]:
        there = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        matches = [(_FILE.fullmatch(path.name), path) for path in there]
        return [(int(match[1]), path) for match, path in matches if match]
