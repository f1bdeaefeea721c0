"""The cache: entries that are whole or absent, and downloads from a server on this machine."""

import errno
import hashlib
import http.server
import multiprocessing
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedskip.data import cache, catalogue
from fedskip.errors import InputError


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSKIP_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_folder(monkeypatch, tmp_path):
    assert cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("FEDSKIP_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == Path("/x/fedskip")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache/fedskip"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.folder() == Path.home() / "Library/Caches/fedskip"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert cache.folder() == Path("/local/fedskip")


def test_write_and_read(root):
    x, names = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array(["a", "ß"])
    empty = np.zeros(0, bool)
    cache.write("d", {"x": x[:, ::2], "names": names, "empty": empty})
    found = cache.read("d", "names", "x", "empty")
    assert found[0].tolist() == ["a", "ß"]
    np.testing.assert_array_equal(found[1], x[:, ::2])
    assert found[2].dtype == bool
    assert cache.has("d")
    assert cache.size("d") > x.nbytes / 2
    cache.write("d", {"x": x})  # a new entry replaces the old one whole
    assert everything(root) == ["d", "d/contents.json", "d/x.npy"]


def test_a_mapped_entry_is_safe_from_writes(root):
    cache.write("d", {"x": np.zeros(4)})
    cache.read("d", "x")[0][:] = 1  # memory that torch may write to, but the file stays
    assert cache.read("d", "x")[0].sum() == 0


def test_missing_entry_says_how_to_get_it(root):
    with pytest.raises(InputError, match=r"`fedskip data get d`, or `fedskip data import d PATH`"):
        cache.read("d", "x")


def test_what_is_not_for_download_is_imported(root):
    """The command that is named brings it: there is nothing to get."""
    with pytest.raises(InputError) as refused:
        catalogue.load("femnist")
    assert refused.value.fix.startswith(
        "run `fedskip data import femnist PATH` with LEAF's json folder"
    )
    assert "data get" not in str(refused.value)


def test_damaged_entry(root):
    cache.write("d", {"x": np.zeros(1000)})
    (root / "d/x.npy").write_bytes((root / "d/x.npy").read_bytes()[:500])
    with pytest.raises(InputError, match="is damaged"):
        cache.read("d", "x")
    with pytest.raises(InputError, match="of another version"):
        cache.read("d", "y")
    cache.write("d", {"x": np.zeros(1000)})
    whole = (root / "d/x.npy").read_bytes()
    (root / "d/x.npy").write_bytes(whole[:-1] + b"\1")  # a flipped bit
    with pytest.raises(
        InputError, match=r"x\.npy is not what was stored.*`fedskip data import d PATH`"
    ):
        cache.read("d", "x")


def test_full_disk_keeps_the_old_entry_and_leaves_nothing(root):
    resource = pytest.importorskip("resource")
    cache.write("d", {"x": np.ones(3)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a disk that is soon full
    try:
        with pytest.raises(
            InputError, match=r"cannot be written \(File too large\)\. Free some space"
        ):
            cache.write("d", {"x": np.zeros(3), "y": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert everything(root) == ["d", "d/contents.json", "d/x.npy"]
    assert cache.read("d", "x")[0].tolist() == [1, 1, 1]


def test_no_permission(root, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        InputError, match=r"\(Permission denied\).*set FEDSKIP_DATA to another folder"
    ):
        cache.write("d", {"x": np.zeros(3)})


def test_one_after_another(root):
    """Several processes that import the same data at once leave one whole entry."""
    processes = [
        multiprocessing.get_context("fork").Process(target=_write, args=(i,)) for i in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    found = cache.read("own", *"abcd")
    assert len({int(array[0]) for array in found}) == 1
    written = ["a.npy", "b.npy", "c.npy", "contents.json", "d.npy"]
    assert everything(root) == [".lock", "own", *(f"own/{name}" for name in written)]


def _write(number: int) -> None:
    for _ in range(5):
        with cache.locked():
            cache.write("own", {key: np.full(10_000, number) for key in "abcd"})


def test_an_entry_that_was_set_aside_comes_back(root):
    """A kill between the two renames of `write`."""
    cache.write("own", {"a": np.arange(3)})
    (root / "own").rename(root / ".own.old")
    with pytest.raises(ZeroDivisionError):
        cache.write("own", {"a": np.arange(3), "b": _Broken()})
    assert cache.read("own", "a")[0].tolist() == [0, 1, 2]


class _Broken:
    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise ZeroDivisionError


def test_leftovers_of_a_killed_process_are_cleared(root):
    (root / ".d.new").mkdir(parents=True)
    (root / ".d.new" / "half.npy").write_bytes(b"half")
    cache.write("d", {"x": np.zeros(3)})
    assert everything(root) == ["d", "d/contents.json", "d/x.npy"]


CONTENT = bytes(range(256)) * 10_000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    """`/a.bin` is whole, `/short.bin` breaks off, `/late.bin` fails once; there is nothing else."""

    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path == "/none.bin" or (self.path == "/late.bin" and len(self.asked) == 1):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: 400 if self.path == "/short.bin" else None])

    def log_message(self, *args):
        pass


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # pooch waits before it tries again
    Server.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Bar:
    """What a bar of pooch is told."""

    def __init__(self):
        self.total, self.done = None, 0

    def update(self, size):
        self.done += size

    def reset(self):
        self.done = 0

    def close(self):
        pass


def test_download(root, web):
    bar = Bar()
    file = cache.download(cache.Source((f"{web}/a.bin",), MD5), bar)
    assert file == root / "downloads/a.bin"
    assert file.read_bytes() == CONTENT
    assert everything(root) == ["downloads", "downloads/a.bin"]
    assert bar.done == bar.total == len(CONTENT)
    cache.download(cache.Source((f"{web}/a.bin",), MD5))  # what is there is not fetched again
    cache.download(cache.Source((f"{web}/a.bin",)))
    assert Server.asked == ["/a.bin"]
    sha256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
    assert cache.download(cache.Source((f"{web}/a.bin",), sha256)) == file
    file.write_bytes(b"something else")  # by hand: it is not deleted
    with pytest.raises(InputError, match=r"a\.bin is not the official file \(sha256:"):
        cache.download(cache.Source((f"{web}/a.bin",), sha256))
    assert file.read_bytes() == b"something else"


def test_another_attempt_and_another_address(web):
    assert cache.download(cache.Source((f"{web}/late.bin",), MD5)).exists()
    addresses = (f"{web}/none.bin", f"{web}/a.bin")
    assert cache.download(cache.Source(addresses, MD5)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "digest"), [("none", MD5), ("short", None), ("short", MD5), ("a", "md5:" + "0" * 32)]
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(root, web, path, digest):
    with pytest.raises(InputError) as failed:
        cache.download(cache.Source((f"{web}/{path}.bin",), digest))
    assert f"{web}/{path}.bin (" in failed.value.rule
    assert f"put it at {root / 'downloads' / path}.bin and run this again" in failed.value.fix
    assert everything(root) == ["downloads"]


def test_without_permission(root, web):
    root.mkdir()
    (root / "downloads").write_text("a file where a folder should be")
    with pytest.raises(InputError, match=r"cannot be written .*set FEDSKIP_DATA"):
        cache.download(cache.Source((f"{web}/a.bin",), MD5))


def test_interrupted_download_leaves_nothing(root, web):
    class Interrupted(Bar):
        def update(self, size):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.download(cache.Source((f"{web}/a.bin",), MD5), Interrupted())
    assert everything(root) == ["downloads"]
