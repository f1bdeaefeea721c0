"""Archives and npz files from anybody: read without unpacking, and within a limit."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskip.data import archives
from fedskip.data.archives import read_npz
from fedskip.errors import InputError


def tar_of(path: Path, *members: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:
        for member in members:
            member.size = 3 if member.isfile() else 0
            file.addfile(member, io.BytesIO(b"abc"))
    return path


def link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("a")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def read(path: Path) -> list[tuple[str, bytes]]:
    return list(archives.contents(path, {"a", "b"}.__contains__))


def test_contents(tmp_path):
    members = [tarfile.TarInfo(name) for name in ("folder/a", "folder/other", "b")]
    assert read(tar_of(tmp_path / "t.tar.gz", *members)) == [("a", b"abc"), ("b", b"abc")]
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        file.writestr("folder/a", "abc")
        file.writestr("c", "no")
    assert read(tmp_path / "z.zip") == [("a", b"abc")]
    (tmp_path / "f/g").mkdir(parents=True)
    (tmp_path / "f/g/b").write_bytes(b"1")
    assert read(tmp_path / "f") == [("b", b"1")]


@pytest.mark.parametrize("name", ["../a", "x/../../a", "/a", "C:\\a", "..\\a"])
def test_escaping_paths_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="holds a path that leads outside"):
        read(tar_of(tmp_path / "t.tar", tarfile.TarInfo(name), mode="w"))
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        file.writestr(name, "abc")
    with pytest.raises(InputError, match="holds a path that leads outside"):
        read(tmp_path / "z.zip")


def test_links_are_refused(tmp_path):
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        with pytest.raises(InputError, match="holds a link or a device, got 'a'"):
            read(tar_of(tmp_path / "t.tar", link(kind)))
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        member = zipfile.ZipInfo("a")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(member, "/etc/passwd")
    with pytest.raises(InputError, match="holds a link"):
        read(tmp_path / "z.zip")


def test_cut_off_and_foreign_files(tmp_path):
    whole = tar_of(tmp_path / "t.tar.gz", *(tarfile.TarInfo(f"f{i}") for i in range(200)))
    (tmp_path / "cut.tar.gz").write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(InputError, match="it may be cut off"):
        read(tmp_path / "cut.tar.gz")
    (tmp_path / "text").write_text("abc")
    with pytest.raises(InputError, match="neither a folder nor a complete tar or zip"):
        read(tmp_path / "text")


@pytest.mark.parametrize("form", ["tar", "header", "zip", "folder"])
def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, form):
    monkeypatch.setattr(archives, "LIMIT", 100_000)
    member, content = tarfile.TarInfo("other"), bytes(200_000)
    path = tmp_path / "bomb"
    if form in ("tar", "header"):
        member.size = len(content)
        member.type = (
            tarfile.REGTYPE if form == "tar" else tarfile.XHDTYPE
        )  # whose text is read at once
        with tarfile.open(path, "w:gz") as file:
            file.addfile(member, io.BytesIO(content))
    elif form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("other", content)
    else:
        path.mkdir()
        (path / "a").write_bytes(content)
    with pytest.raises(InputError, match="unpacks to more than 100,000 bytes"):
        read(path)


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    arrays = {
        "x": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "y": np.arange(0),
        "name": np.array(["ß"]),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz", "data.name", "")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "members",
    [
        {"x.npy": b"1 2 3"},
        {"x": b"1 2 3"},
        {"x.npy": npy(np.ones(2))[:-1]},
        {"x.npy": npy(np.array([None, {}]))},
        {"x.npy": b"\x93NUMPY\x01\x00\x10\x00" + b"__import__('os')"},
        {"x.npy": npy(np.zeros(1)).replace(b"(1,), ", b"(1" + b"0" * 15 + b",), ")},
    ],
)
def test_members_that_are_no_arrays_of_numbers(tmp_path, members):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=r"a\.npz cannot be read as an \.npz file \('x'"):
        read_npz(tmp_path / "a.npz", "data.name", "")


def test_arrays_larger_than_memory_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}.__getitem__)
    with pytest.raises(InputError, match="bytes of memory, and this machine has 1,000"):
        read_npz(tmp_path / "a.npz", "data.name", "")
