"""The cache: entries that are whole or absent, and downloads that leave nothing half."""

import errno
import hashlib
import http.server
import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest

from fedskip.data import cache, catalogue
from fedskip.input.errors import InputError


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
    assert refused.value.fix.startswith("run `fedskip data import femnist PATH` with LEAF's json folder")
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
    with pytest.raises(InputError, match=r"x\.npy is not what was stored.*`fedskip data import d PATH`"):
        cache.read("d", "x")
    (root / "d/contents.json").unlink()  # of an older version
    assert len(cache.read("d", "x")[0]) == 1000


def test_full_disk_keeps_the_old_entry_and_leaves_nothing(root):
    resource = pytest.importorskip("resource")
    cache.write("d", {"x": np.ones(3)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a disk that is soon full
    try:
        with pytest.raises(InputError, match=r"cannot be written \(File too large\)\. Free some space"):
            cache.write("d", {"x": np.zeros(3), "y": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert everything(root) == ["d", "d/contents.json", "d/x.npy"]
    assert cache.read("d", "x")[0].tolist() == [1, 1, 1]


def test_no_permission(root, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"\(Permission denied\).*set FEDSKIP_DATA to another folder"):
        cache.write("d", {"x": np.zeros(3)})
    with pytest.raises(InputError, match=r"\(Permission denied\)"):
        cache.download(cache.Source(("file:///nowhere/a.bin",)))


def test_one_after_another(root):
    """Several processes that import the same data at once leave one whole entry."""
    processes = [multiprocessing.get_context("fork").Process(target=_write, args=(i,)) for i in range(4)]
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
        with cache.held():
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


@pytest.fixture
def official(tmp_path):
    path = tmp_path / "official.bin"
    path.write_bytes(bytes(range(256)) * 10_000)
    return path


def source(path: Path, content: bytes | None = None, *more: str) -> cache.Source:
    content = path.read_bytes() if content is None else content
    return cache.Source((*more, path.as_uri()), "md5:" + hashlib.md5(content).hexdigest())


def test_download(root, official):
    steps = []
    found = cache.download(source(official), lambda done, total: steps.append((done, total)))
    assert found == root / "downloads/official.bin"
    assert found.read_bytes() == official.read_bytes()
    assert everything(root / "downloads") == ["official.bin"]
    size = official.stat().st_size
    assert steps[-1] == (size, size)
    assert steps == sorted(steps)
    official.unlink()
    cache.download(source(found))  # what is there is not fetched again


def test_sha256(official, root):
    digest = "sha256:" + hashlib.sha256(official.read_bytes()).hexdigest()
    assert cache.download(cache.Source((official.as_uri(),), digest)).exists()


def test_wrong_digest_leaves_nothing(root, official):
    with pytest.raises(InputError, match=r"is not the official file: its md5 is \w{32}, not"):
        cache.download(source(official, b"something else"))
    assert everything(root) == ["downloads"]


def test_wrong_file_put_there_by_hand_is_not_deleted(root, official):
    cache.download(source(official))
    with pytest.raises(InputError, match="Delete it to have it downloaded again"):
        cache.download(source(official, b"something else"))
    assert everything(root / "downloads") == ["official.bin"]


def test_second_address(root, official):
    assert cache.download(source(official, None, "http://127.0.0.1:9/official.bin")).exists()


def test_without_network_the_message_says_which_file_to_put_where(root):
    with pytest.raises(InputError) as error:
        cache.download(cache.Source(("http://127.0.0.1:9/cifar.tar.gz",), "md5:0"))
    assert "http://127.0.0.1:9/cifar.tar.gz cannot be reached" in str(error.value)
    assert f"put it at {root / 'downloads' / 'cifar.tar.gz'} and run this again" in str(error.value)
    assert everything(root) == ["downloads"]


def test_truncated_download(root):
    class Short(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 400)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Short) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(InputError, match=r"broke off after 400 of 1,000 bytes"):
            cache.download(cache.Source((f"http://127.0.0.1:{server.server_port}/a.bin",)))
        server.shutdown()
    assert everything(root) == ["downloads"]


def test_interrupted_download_leaves_nothing(root, official):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.download(source(official), interrupt)
    assert everything(root) == ["downloads"]
