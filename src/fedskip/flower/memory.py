"""What a client remembers, in files: a version for each of the last two rounds that matter.

A reply may get lost after the client has trained. So the server names the last round whose reply it has
accepted, and the client continues from its memory of that round: a lost reply or a replay changes nothing.
"""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedskip.errors import InputError, require
from fedskip.files import digest, remove_partial_files, write_bytes
from fedskip.methods.base import State

_FILE = re.compile(r"(\d{6,})\.([0-9a-f]{16})\.safetensors")
_RUN = re.compile(r"[0-9a-f]{16,64}")
_BRING_BACK = "bring back the state-dir as it was"


class MemoryFiles:
    """The memory of a client in one run."""

    def __init__(self, state_dir: Path, run: str) -> None:
        """`run`: the server's name for it, which becomes the name of a folder."""
        ok = bool(_RUN.fullmatch(run))
        require("the run's name", ok, "must be 16 hexadecimal digits or more", run)
        self.folder = state_dir / run
        remove_partial_files(self.folder)

    def load(self, round: int) -> State:
        """The memory after a round; empty before the first visit, which is round 0."""
        if round == 0:
            return {}
        path = dict(self._versions()).get(round)
        if path is None:
            rule = f"has no memory of round {round}, which the server has accepted"
            raise InputError(str(self.folder), rule, fix=_BRING_BACK)
        content = path.read_bytes()
        try:
            if digest(content) != path.name.split(".")[1]:
                raise ValueError("its bytes are not what its name says")
            return load(content)
        except (SafetensorError, ValueError) as error:
            raise InputError(str(path), f"is damaged ({error})", fix=_BRING_BACK) from error

    def save(self, round: int, state: State, accepted: int) -> None:
        """Write the memory after a round. Keep that of the accepted round, and drop older ones."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
        path = self.folder / f"{round:06d}.{digest(content)}.safetensors"
        write_bytes(path, content)
        for other, file in self._versions():
            replaced = other == round and file != path
            if replaced or (other < round and other != accepted):  # later ones may be accepted yet
                file.unlink()

    def _versions(self) -> list[tuple[int, Path]]:
        files = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        matches = [(_FILE.fullmatch(file.name), file) for file in files]
        return [(int(match[1]), file) for match, file in matches if match]
