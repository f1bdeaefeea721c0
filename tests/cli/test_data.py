"""`fedskip data list | get | show | import`, as a user sees them."""

import functools
import hashlib
import re
import shutil
import threading
import zipfile
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedskip.cli.data import app
from fedskip.data import cache, catalogue, shakespeare
from fedskip.data.partitions import partition
from fedskip.errors import InputError
from fedskip.records.table import Table
from fedskip.report import heatmap
from terminal import call


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def fedskip_data(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A zip with a play of two roles of 1,000 windows each, in place of Gutenberg's."""
    monkeypatch.setattr(shakespeare, "GOLDEN", {"roles": 2, "windows": 2000})
    speeches = [f"  {role}. {'word' * 268}wor\n    a\n    b" for role in ("ROMEO", "JULIET")]
    lines = ["", "by William Shakespeare", "", "PLAY", "", "by William Shakespeare", *speeches]
    path = tmp_path / "1994-01-100.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("100.txt", "\n".join(lines))
    return path


def test_import_show_and_list(book, root):
    assert "shakespeare  not here; import takes Gutenberg's text" in fedskip_data("list")
    assert fedskip_data("import", "shakespeare", str(book)).startswith("shakespeare: 0 MB in ")
    assert "shakespeare  ready, 0 MB" in fedskip_data("list")
    shown = fedskip_data("show", "shakespeare")
    for line in (
        "clients        2",
        "train samples  1,800",
        "test samples   42",
        "classes        80",
    ):
        assert line in shown
    assert "900 to 900, median 900, std 0" in shown
    assert {path.name for path in root.parent.iterdir()} == {book.name, root.name}, (
        "no picture unasked"
    )
    fedskip_data("show", "shakespeare", "--out", "map.svg")
    assert (root.parent / "map.svg").read_text().startswith("<?xml")


def moved(monkeypatch, name, source):
    """A data set that is to be had elsewhere."""
    item = catalogue.CATALOGUE[name]
    monkeypatch.setitem(
        catalogue.CATALOGUE, name, replace(item, files=replace(item.files, source=source))
    )


def test_get(book, root, monkeypatch):
    digest = "md5:" + hashlib.md5(book.read_bytes()).hexdigest()
    serve = functools.partial(SimpleHTTPRequestHandler, directory=book.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{book.name}"
        moved(monkeypatch, "shakespeare", cache.Source((url,), digest))
        assert "shakespeare: 0 MB in " in fedskip_data("get", "shakespeare")
        server.shutdown()
    assert sorted(path.name for path in root.iterdir()) == [".lock", "downloads", "shakespeare"]
    assert not list((root / "downloads").iterdir())  # the entry has all that was in the file
    book.unlink()
    fedskip_data("get", "shakespeare")  # there already


def test_get_without_network_says_what_to_do(monkeypatch, root):
    monkeypatch.setattr(cache, "RETRIES", 0)
    moved(monkeypatch, "cifar10", cache.Source(("http://127.0.0.1:9/c.tar.gz",)))
    with pytest.raises(InputError, match=r"put it at .*c.tar.gz and run this again"):
        fedskip_data("get", "cifar10")
    with pytest.raises(
        InputError, match=r"no official file.*`fedskip data import femnist PATH` with LEAF's json"
    ):
        fedskip_data("get", "femnist")
    with pytest.raises(InputError, match="needs no files: it is generated"):
        fedskip_data("get", "synthetic")
    with pytest.raises(InputError, match=r"Did you mean 'cifar10'"):
        fedskip_data("get", "cifar-10")
    with pytest.raises(
        InputError, match=r"PATH does not exist.*Give cifar-10-python.tar.gz or the folder"
    ):
        fedskip_data("import", "cifar10", "nowhere")


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(
        path,
        x=np.zeros((200, 2)),
        y=np.arange(200) % 5,
        test_x=np.ones((9, 2)),
        test_y=np.zeros(9, int),
    )
    return str(path)


def test_show_any_partition(own, tmp_path, monkeypatch):
    out = tmp_path / "map.png"
    shown = fedskip_data(
        "show", own, "--set", "partition=iid", "--set", "clients=4", "--out", str(out)
    )
    for line in ("clients        4", "train samples  200", "test samples   9", "50 to 50"):
        assert line in shown
    assert out.read_bytes().startswith(b"\x89PNG")
    shards = ["partition=shards", "partition.classes_per_client=1", "clients=5"]
    assert "40 to 40, median 40, std 0" in shown_with(own, *shards)
    drawn = []
    monkeypatch.setattr(heatmap, "draw", lambda counts, *_: drawn.append(counts))
    fedskip_data("show", own, *(w for text in shards for w in ("--set", text)), "--out", "map.svg")
    assert (drawn[0] > 0).sum(0).tolist() == [1] * 5, "one class for each client"
    skewed = ["partition=quantity", "clients=5", "partition.min_size=1"]
    one, again, other = (shown_with(own, *skewed, f"partition_seed={seed}") for seed in (0, 0, 1))
    assert one == again != other


def shown_with(name, *assignments):
    return fedskip_data("show", name, *(word for text in assignments for word in ("--set", text)))


def test_show_a_partition_from_a_file(own, tmp_path):
    file = tmp_path / "p.npz"
    partition("iid", np.arange(200), np.zeros(200), clients=3, seed=0).save(file)
    shown = shown_with(own, f"partition.file={file}")
    assert "clients        3" in shown
    assert f"partition      {file}" in shown
    fedskip_data("show", own, "--set", f"partition.file={file}", "--out", "map.svg")
    assert (tmp_path / "map.svg").exists()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("data=5", "data must hold options of the data set, got 5"),
        ("partition.kind=5", "partition.kind must be text, got 5"),
        ("partition_seed=abc", "partition_seed must be a whole number or null, got 'abc'"),
        ("partition_seed=-1", "partition_seed must be >= 0, got -1"),
    ],
)
def test_show_refuses_what_a_study_refuses(own, assignment, message):
    with pytest.raises(InputError, match=message):
        fedskip_data("show", own, "--set", "clients=2", "--set", assignment)


def test_show_bad_input(own, tmp_path):
    with pytest.raises(InputError, match="rounds does not change the data"):
        fedskip_data("show", own, "--set", "rounds=3")
    with pytest.raises(InputError, match=r"out must end in .pdf, .svg, .png"):
        fedskip_data("show", own, "--set", "clients=2", "--out", "map.txt")
    fedskip_data("show", own, "--set", "clients=2", "--out", "no/map.svg")
    with pytest.raises(InputError, match=r"--out exists already, got 'no/map.svg'.*force=True"):
        fedskip_data("show", own, "--set", "clients=2", "--out", "no/map.svg")


def test_from_a_table_to_results(tmp_path, monkeypatch):
    """The three commands of docs/data.md, with the files of examples/, which the page quotes."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "data.md").read_text(encoding="utf-8")
    study = (root / "examples" / "patients.yaml").read_text(encoding="utf-8")
    assert study.split("\n", 1)[1] in page  # after its comment
    block = re.search(r"<!-- three commands -->\n```\n(.*?)```", page, re.DOTALL)
    show, run, report = block[1].splitlines()
    for name in ("patients.csv", "patients.yaml"):
        shutil.copy(root / "examples" / name, tmp_path)
    code, out, _ = call(*show.split()[1:])
    assert code == 0
    for line in (
        "clients        10",
        "classes        2 (ill, well)",
        "inputs         age, sex=female, sex=male, smoker=",
    ):
        assert line in out
    code, out, err = call(
        *run.split()[1:], "--rounds", "10", "--seeds", "1", "--set", "processes=1"
    )
    assert code == 0, err
    assert "worst 10%" in out
    code, out, err = call(*report.split()[1:])
    assert code == 0, err
    summary = Table.read(tmp_path / "patients" / "summary.csv")
    assert all(row["last"] > 0.65 and row["worst_clients"] <= row["last"] for row in summary)
    assert {path.name for path in (tmp_path / "patients").glob("*.csv")} >= {
        "table.csv",
        "clients.csv",
    }


def test_show_names_classes(tmp_path):
    (tmp_path / "t.csv").write_text("size,kind\n" + "1.5,b\n2.5,a\n" * 10)
    shown = shown_with("t.csv", "data.label=kind", "clients=2")
    assert "classes        2 (a, b)" in shown
    assert "note           kind: 2 classes (a, b); 1 inputs" in shown
    assert "inputs         size" in shown
    fedskip_data(
        "show", "t.csv", "--set", "data.label=kind", "--set", "clients=2", "--out", "map.svg"
    )
    assert (tmp_path / "map.svg").exists()
