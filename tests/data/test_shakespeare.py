"""SHAKESPEARE: LEAF's plays, roles and windows from the raw text, and its golden counts."""

import lzma
import re
import time
import zipfile

import numpy as np
import pytest
import torch

from fedskip.data import load, shakespeare
from fedskip.data.partitions import partition
from fedskip.errors import InputError
from real_data import real


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "cache"))


def works(*plays: tuple[str, list[str]]) -> str:
    """A small book in the form of Gutenberg's."""
    lines = [
        "\ufeffThe Complete Works",
        "",
        "THE SONNETS",
        "",
        "by William Shakespeare",
        "",
        "  From fairest.",
    ]
    for title, body in plays:
        lines += ["", "1603", "", title, "", "", "by William Shakespeare", "", *body]
    return "\n".join(lines)


HAMLET = [
    "Dramatis Personae",
    "  Ham. To be, or not to be,",
    "    that is    the question:  ",
    "                 Enter Ghost",  # four spaces and more: part of the speech
    "Elsinore. A platform",  # no rule fits: skipped, and Hamlet goes on
    "    Whether",
    "  HAM. 'tis nobler",
    "  Ghost. Mark me.",
    "    I am",
    "    thy father's spirit",
    "  Osric. Hum",
    "    hum",
]


def test_roles_by_hand():
    found = shakespeare.speech(HAMLET, indented=True)
    assert found["HAM"] == [
        "To be, or not to be,",
        "that is    the question:  ",
        "             Enter Ghost",
        "Whether",
        "'tis nobler",
    ]
    assert found["GHOST"] == ["Mark me.", "I am", "thy father's spirit"]


def test_the_play_without_indentation():
    lines = [
        "Dro. I am",
        "beaten",
        "",
        "ACT II. SCENE 1",  # an act ends the speech
        "lost",
        "Adr. Back, slave",
        "<<THIS ELECTRONIC VERSION>>",  # and so does a note
        "lost too",
    ]
    assert shakespeare.speech(lines, indented=False) == {
        "DRO": ["I am", "beaten", ""],
        "ADR": ["Back, slave"],
    }


def test_texts_and_names(monkeypatch):
    monkeypatch.setattr(shakespeare, "WINDOW", 20)
    poem = ["  Venus. One role", "    does not make", "    a play of this"]
    found = shakespeare.roles(works(("HAMLET, Prince", HAMLET), ("VENUS", poem)))
    # Osric has only two lines; every line is followed by a blank, runs of blanks are one
    assert found == {
        "HAMLET__Prince_HAM": "To be, or not to be, that is the question: Enter Ghost Whether 'tis nobler ",
        "HAMLET__Prince_GHOST": "Mark me. I am thy father's spirit ",
    }


def test_the_poems_at_the_end_are_left_out(monkeypatch):
    text = works(("HAMLET", HAMLET))
    last = text.splitlines().index("    that is    the question:  ")
    monkeypatch.setattr(shakespeare, "LAST_LINE", last - 1)  # counted from the second line
    (play,) = shakespeare.plays(text)
    assert play[1][-1] == "    that is    the question:  "


def test_vocabulary():
    assert len(shakespeare.VOCABULARY) == len(set(shakespeare.VOCABULARY)) == 80
    assert shakespeare.encode("\n a}").tolist() == [0, 1, 53, 79]
    assert shakespeare.encode("|é\u4e2d\x7f").tolist() == [79] * 4  # unknown


def test_windows_are_slices_of_the_text():
    text = torch.arange(200, dtype=torch.uint8) % 80
    windows = shakespeare.Windows(text)
    assert len(windows) == len(windows.labels()) == 120
    index = torch.tensor([[0, 3], [119, 50]])
    x, y = windows.take(index)
    assert x.shape == (2, 2, 80)
    assert x.dtype == y.dtype == torch.int64
    for place in np.ndindex(2, 2):
        i = int(index[place])
        assert x[place].tolist() == text[i : i + 80].tolist()
        assert int(y[place]) == int(text[i + 80]) == windows.labels()[i]


def test_ranges():
    assert shakespeare.ranges(np.array([5, 9, 20]), np.array([7, 9, 23])).tolist() == [
        5,
        6,
        20,
        21,
        22,
    ]


@pytest.fixture
def small_book(tmp_path, monkeypatch):
    """A play of three roles with 1,000, 900 and 300 windows, accepted as if it were the official one."""
    roles = {"LONG": 1080, "MIDDLE": 980, "SHORT": 380}
    body = []
    for role, length in roles.items():
        words = (role.lower() * length)[: length - 7]  # " a. b. " follows
        body += [f"  {role}. {words}", "    a.", "    b."]
    monkeypatch.setattr(shakespeare, "GOLDEN", {"roles": 3, "windows": 2200})
    path = tmp_path / "100.txt"
    path.write_text(works(("PLAY", body)), encoding="utf-8")
    return path


def test_split_is_sequential_with_a_gap(small_book):
    from fedskip.data.catalogue import import_

    import_("shakespeare", small_book)
    data = load("shakespeare")
    assert data.owner_names == (
        "PLAY_LONG",
        "PLAY_MIDDLE",
    )  # 30 windows do not reach over the gap of 79
    train, test = data.split(0)
    assert [(data.owner[train] == c).sum() for c in (0, 1)] == [900, 810]
    assert [(data.owner[test] == c).sum() for c in (0, 1)] == [21, 11]
    assert train[899] == 899
    assert test[0] == 900 + 79
    for client in (0, 1):  # no test input shares a character with a training input
        assert (
            test[data.owner[test] == client].min() >= train[data.owner[train] == client].max() + 80
        )
    assert all(np.array_equal(a, b) for a, b in zip(data.split(1), (train, test), strict=True))

    with pytest.raises(InputError, match=r"data.train_fraction leaves no role"):
        load("shakespeare", train_fraction=0.95)
    with pytest.raises(InputError, match=r"data.train_fraction must be in"):
        load("shakespeare", train_fraction=1.5)


@pytest.mark.parametrize("form", ["plain", "xz", "zip"])
def test_forms_of_the_file(small_book, form):
    raw = small_book.read_bytes()
    if form == "xz":
        small_book.write_bytes(lzma.compress(raw))
    elif form == "zip":
        with zipfile.ZipFile(small_book, "w") as archive:
            archive.writestr("100.TXT", raw.decode("utf-8-sig").replace("\n", "\r\n"))
    arrays = shakespeare.read(small_book)
    assert arrays["length"].tolist() == [1080, 980, 380]
    assert arrays["start"].tolist() == [0, 1080, 2060]


def test_another_edition_says_which_counts_differ(small_book, monkeypatch):
    monkeypatch.setattr(shakespeare, "GOLDEN", {"roles": 1129, "windows": 2200})
    with pytest.raises(
        InputError, match=r"3 roles instead of 1,129\. Take the 1994 edition"
    ) as error:
        shakespeare.read(small_book)
    assert "windows" not in str(error.value)


@pytest.mark.parametrize("raw", [lzma.compress(b"abc" * 1000)[:-30], b"PK\x03\x04 not a zip"])
def test_damaged_file(tmp_path, raw):
    path = tmp_path / "100.txt"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=re.escape(str(path))):
        shakespeare.read(path)


def test_golden_counts():
    from fedskip.data.catalogue import import_

    path = real("shakespeare_raw_data.txt.xz")
    started = time.perf_counter()
    import_("shakespeare", path)
    parsed = time.perf_counter()
    data = load("shakespeare")
    train, test = data.split(0)
    assert parsed - started < 20
    assert time.perf_counter() - parsed < 3
    assert (len(train), len(test)) == (3_678_451, 356_921)
    clients = partition(
        "natural", train, data.samples.labels(), clients=None, seed=0, owner=data.owner
    )
    assert len(clients) == len(data.owner_names) == data.defaults["clients"] == 660
    assert clients.sizes.min() == 721
    assert len(np.unique(data.owner[test])) == 660
    resident = data.samples.text.nbytes + data.owner.nbytes + train.nbytes + test.nbytes
    assert resident < 100e6
    x, _ = data.samples.take(torch.from_numpy(train[:1]))
    line = "".join(shakespeare.VOCABULARY[i] for i in x[0].tolist())
    assert line.startswith("In delivering my son from me, I bury a second husband.")
    assert len(load("shakespeare", train_fraction=0.8).owner_names) == 799


def test_another_text_is_refused():
    with pytest.raises(InputError, match=r"is another text: no play begins in it.*number 100"):
        list(shakespeare.plays("Call me Ishmael.\n" * 100))
