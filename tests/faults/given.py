"""What may lie in a case's folder to begin with. Each function makes it in an empty folder, once.

A function calls those that it builds on. Names of functions are what a case's `given` lists.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

STUDY = """\
data: {file}
model: {{name: perceptron, inputs: 2}}
methods: "fedavg, fedskip(period=2), scaffold"
partition: natural
cohort: 3
rounds: 6
seeds: 1
compile: false
processes: 1
checkpoint_every: 2
local: {{batch: 4, epochs: 1}}
"""

OWN = """\
from dataclasses import dataclass
from typing import ClassVar
import numpy as np, torch
from torch import nn
import fedskip
from fedskip import *
from fedskip.methods import Merged, Terms

def toy(**keys):
    x = torch.randn(72, 2, generator=torch.Generator().manual_seed(0))
    train = np.arange(72) % 3 > 0
    known = dict(
        name="toy", samples=Arrays(x, (x.sum(1) > 0).long()), classes=2, owner=np.arange(72) // 12,
        split=lambda seed: (np.flatnonzero(train), np.flatnonzero(~train)),
    )
    return Dataset(**(known | keys))

def run(**keys):
    known = dict(
        data=toy(), model={"name": "perceptron", "inputs": 2}, methods="fedavg", partition="natural",
        cohort=3, rounds=2, seeds=1, compile=False, processes=1, local={"batch": 4, "epochs": 1},
    )
    return Study("out", **(known | keys)).run()
"""


def toy(folder: Path) -> None:
    """toy.npz: six clients with twelve samples each, two classes in the plane."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 12)
    x = (rng.normal(size=(72, 2)) + rng.normal(size=(6, 2))[client]).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    np.savez(folder / "toy.npz", x=x, y=y, client=client)


def study(folder: Path) -> None:
    """toy.npz, and study.yaml, which trains on it: six rounds, a checkpoint after every second."""
    toy(folder)
    (folder / "study.yaml").write_text(STUDY.format(file="toy.npz"))


def finished(folder: Path) -> None:
    """And out/, where that study has been run."""
    study(folder)
    _fedskip(folder, "run", "study.yaml", "--out", "out")


def stopped(folder: Path) -> None:
    """And out/, where that study was killed in round 5; its last checkpoint is of round 4."""
    study(folder)
    code = (
        "import os, fedskip.federation.server as s\n"
        "merge = s.Server.merge\n"
        "def dying(self, round, *a, **k):\n"
        "    if round >= 5: os._exit(9)\n"
        "    return merge(self, round, *a, **k)\n"
        "s.Server.merge = dying\n"
        "import sys; sys.argv = ['fedskip', 'run', 'study.yaml', '--out', 'out']\n"
        "from fedskip.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def federation(folder: Path) -> None:
    """And fed/, a federation of the sites a and b on it: fed/clients/a has its data, 12 samples."""
    from fedskip.flower.config import FederationConfig
    from fedskip.flower.folder import write_folder

    toy(folder)
    text = (
        "data: {name: sites}\nmodel: {name: perceptron, inputs: 2, classes: 2}\nmethods: fedavg\n"
    )
    text += "cohort: 2\nrounds: 2\nlocal: {batch: 4, epochs: 1}\n"
    write_folder(
        folder / "fed", FederationConfig(clients=("a", "b"), server="127.0.0.1:18765"), text, []
    )
    for name in "ab":
        rng = np.random.default_rng(0)
        site = folder / "fed" / "clients" / name
        np.savez(
            site / "own.npz", x=rng.normal(size=(20, 2)).astype(np.float32), y=np.arange(20) % 2
        )
        file = site / "client.yaml"
        file.write_text(file.read_text().replace("data: ''", "data: own.npz"))


def digits(folder: Path) -> None:
    """digits.npz, and FEMNIST made from it in cache/: two writers with 80 pictures each."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random((160, 28, 28)) < 0.1, 0, 255).astype(np.uint8)
    np.savez(folder / "digits.npz", x=x, y=np.arange(160) % 62, writer=np.repeat(np.arange(2), 80))
    _fedskip(folder, "data", "import", "femnist", "digits.npz")


POOL = """\
import numpy as np, torch
from fedskip import Arrays, Dataset, Study

rng = np.random.default_rng(0)
OWNER = np.arange(72) % 6
X = torch.from_numpy(rng.normal(size=(72, 2)).astype(np.float32))
Y = (X.sum(1) > 0).long()

class Pool:
    def __len__(self): return 72
    def take(self, index): return X[index], Y[index]
    def labels(self): return Y.numpy()
    def to(self, device, dtype): return self

def study(run=True, partition="natural", clients=None, rounds=1, **changes):
    about = dict(name="own", samples=Arrays(X, Y), split=lambda seed: (np.arange(60), np.arange(60, 72)))
    data = Dataset(**{**about, "classes": 2, "owner": OWNER, **changes})
    made = Study(out="out", data=data, model=dict(name="perceptron", inputs=2), methods="fedavg", cohort=2,
                 partition=partition, clients=clients, rounds=rounds, compile=False, engine="loop",
                 local=dict(batch=4, epochs=1))
    if run: made.run()
    return made
"""


WRITE = """\
import io
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from PIL import Image

def picture(side=28, value=255):
    content = io.BytesIO(); Image.fromarray(np.full((side, side), value, np.uint8)).save(content, "PNG")
    return content.getvalue()

def write(name="f.parquet", n=80, **columns):
    image, character = [picture(value=255 - i) for i in range(n)], [i % 62 for i in range(n)]
    known = dict(image=image, writer_id=["w"] * n, character=character)
    table = {key: value for key, value in (known | columns).items() if value is not None}
    pq.write_table(pa.table(table), name)
"""


def parquet(folder: Path) -> None:
    """write.py: `write(...)` makes f.parquet, FEMNIST as the hub has it, with columns that one may
    bend.
    """
    (folder / "write.py").write_text(WRITE)


def pool(folder: Path) -> None:
    """pool.py: `study(...)` runs a data set of one's own, with the parts of it that are given."""
    (folder / "pool.py").write_text(POOL)


def own(folder: Path) -> None:
    """own.py: `toy`, a data set that one may bend, and `run`, a study in which anything may be
    one's own.
    """
    (folder / "own.py").write_text(OWN)


def _fedskip(folder: Path, *arguments: str) -> None:
    code = "from fedskip.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "FEDSKIP_DATA": "cache"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


GIVEN: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (toy, study, finished, stopped, federation, digits, pool, parquet, own)
}
