"""A study that is killed at random moments, again and again, goes on to the same bits; files are
whole.
"""

import json
import random
import shutil
import time

import numpy as np
import pytest

from faults.player import FINE
from faults.points import RESUME, RUN, World, promised, seen

KILLS = 5  # in a chain, at most
MANY = {1: 400, 2: 100}  # kills of studies, by the number of their processes


@pytest.fixture(scope="module", params=MANY, ids=["here", "apart"])
def killed(request, preloaded, tmp_path_factory):
    """A study, how long it takes, what comes out if nobody kills it, and how many kills are many."""
    keys = {"engine": "stacked", "processes": str(request.param)}
    world = World(preloaded, tmp_path_factory.mktemp("kills"), **keys)
    folder, began = world.fresh(), time.monotonic()
    world.fine(folder, *RUN)
    return world, time.monotonic() - began, promised(folder / "out"), MANY[request.param]


def chain(killed, rng):
    """Kill a study a few times, then let it end; how often it was killed, and what is not the same."""
    world, seconds, undisturbed, _ = killed
    folder, kills = world.fresh(), 0
    for _ in range(rng.randint(1, KILLS)):
        begun = (folder / "out" / "study.yaml").exists()
        ended = world.do(
            folder, *(RESUME if begun else RUN), limit=rng.uniform(0.05, 0.95) * seconds
        )
        kills += ended.code is None
        if ended.code is not None:
            assert ended.code == 0, ended.err
            break
    world.finish(folder)
    return kills, world.compare(folder, undisturbed)


def kill(killed, record_property, wanted, seed):
    rng, kills, wrong = random.Random(seed), 0, []
    while kills < wanted:
        found, other = chain(killed, rng)
        kills += found
        wrong += [other] if other else []
    seen(record_property, "random kills", FINE if not wrong else "silently wrong", kills)
    assert not wrong


def test_some_kills(killed, record_property):
    kill(killed, record_property, 2, seed=0)


@pytest.mark.slow
def test_many_kills(killed, record_property):
    kill(killed, record_property, killed[-1], seed=1)


# --- commands that write one thing ----------------------------------------------------------------

REPORT = ("report", "out", "--to", "page", "--csv", "--latex", "--markdown")
MODEL = "out/models/toy.FedAvg.s0.best.safetensors"
WRITING = {  # name -> the command, and what it must leave whole or not at all
    "report": (REPORT, "page"),
    "export": (("export", MODEL, "model.pt"), "model.pt"),
    "heat map": (("data", "show", "toy.npz", "--out", "map.svg"), "map.svg"),
    "import": (("data", "import", "femnist", "leaf"), "cache/femnist"),
    "import anew": (("data", "import", "femnist", "leaf", "--force"), "cache/femnist"),
}

SLOW = ("report", "heat map", "import", "import anew")


def leaf(folder):
    """FEMNIST as LEAF writes it, of three writers."""
    rng = np.random.default_rng(0)
    for part, size in (("train", 12), ("test", 4)):
        (folder / part).mkdir(parents=True)
        users = [f"f{i:04d}_00" for i in range(3)]
        data = {
            user: {
                "x": (1 - rng.random((size, 784)) / 4).round(3).tolist(),
                "y": rng.integers(0, 62, size).tolist(),
            }
            for user in users
        }
        content = {"users": users, "num_samples": [size] * 3, "user_data": data}
        (folder / part / f"all_data_0_{part}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def finished(preloaded, tmp_path_factory):
    world = World(preloaded, tmp_path_factory.mktemp("finished"))
    leaf(world.first / "leaf")
    world.begin(*RUN)
    return world


def contents(path):
    """Files under a path, but for those whose names begin with a dot: nobody takes them for
    results.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {
        str(file.relative_to(path.parent)): file.read_bytes()
        for file in files
        if file.is_file() and not file.name.startswith(".")
    }


def without_dates(found):
    """SVG files and pages hold random names, and models are pickled with none: sizes of those will
    do.
    """
    return {
        name: len(content) if name.endswith((".svg", ".html")) else content
        for name, content in found.items()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in WRITING]
)
def test_what_a_killed_command_leaves_is_whole(name, finished, record_property):
    command, left = WRITING[name]
    folder = finished.fresh()
    if name == "import anew":
        finished.fine(folder, *WRITING["import"][0])
    template = shutil.copytree(folder, folder.with_name(f"{name}.first"))
    points = finished.fine(folder, *command, fault={}).points
    whole, wrong, tried = without_dates(contents(folder / left)), [], 0
    assert whole
    for number, point in enumerate(points, 1):
        for how in ("kill", "tear") if point.startswith("write") else ("kill",):
            tried += 1
            shutil.rmtree(folder)
            shutil.copytree(template, folder)
            assert finished.do(folder, *command, fault={"at": number, "how": how}).code == -9
            some = without_dates(contents(folder / left))
            torn = [file for file, content in some.items() if whole.get(file) != content]
            fewer = left.startswith("cache") and some and some.keys() != whole.keys()
            finished.fine(folder, *dict.fromkeys([*command, "--force"]))
            same = without_dates(contents(folder / left)) == whole
            if torn or fewer or not same:
                wrong.append((how, number, point, torn, fewer, same))
    seen(record_property, "killed commands", FINE if not wrong else "lost", tried)
    assert not wrong
