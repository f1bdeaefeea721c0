"""What is left of a cluster is ended, and nothing else."""

import subprocess
import sys
import time
from pathlib import Path

from fedskip.cluster import after


def test_who_holds_a_file_of_the_folder_is_ended(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine2"
    holders = []
    for folder in (mine, other):
        folder.mkdir()
        code = f"import time; file = open({str(folder / 'log')!r}, 'w'); print(flush=True); time.sleep(60)"
        holders.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        assert holders[-1].stdout is not None
        holders[-1].stdout.readline()
    held = (mine / "own").open("w")  # its owner has files open there, too
    watching = after.start(str(mine))
    time.sleep(0.5)
    assert holders[0].poll() is None, "nothing happens before its owner is done"
    after.finish(watching)
    held.close()
    assert holders[0].wait(10) == -9
    assert holders[1].poll() is None
    assert not mine.exists()
    assert other.exists()
    holders[1].kill()
    holders[1].wait()
