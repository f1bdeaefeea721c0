"""Files that are there whole or not at all; a folder that one process holds; errors that name their file."""

import errno
import logging
import os
import signal
import subprocess
import sys

import pytest

from fedskip import files
from fedskip.errors import InputError
from fedskip.files import locked, refuse_existing, sync_folder, with_filename, write_bytes

fcntl = pytest.importorskip("fcntl")


def refuses(number):
    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def test_an_error_names_the_file_that_was_to_be_written(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuses(errno.ENOSPC))
            with pytest.raises(OSError, match="No space left") as caught:
                write_bytes(tmp_path / "a", b"new")
        assert caught.value.filename == str(tmp_path / "a")
        assert str(caught.value).endswith(f"'{tmp_path / 'a'}'")
        assert [path.name for path in tmp_path.iterdir()] == ["a"], "nothing half written stays"
    assert (tmp_path / "a").read_text() == "old"


def test_a_rename_that_fails_is_about_one_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_bytes(tmp_path / "folder", b"new")
    assert str(caught.value) == f"[Errno 21] Is a directory: '{tmp_path / 'folder'}'"
    with pytest.raises(ValueError, match="other"), with_filename(tmp_path):
        raise ValueError("other errors pass")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_a_folder_is_used_with_a_warning(number, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files.fcntl, "flock", refuses(number))
    with (
        caplog.at_level(logging.WARNING),
        locked(tmp_path / "out"),
        locked(tmp_path / "other", wait=True),
    ):
        pass
    assert f"{tmp_path / 'out'} cannot be locked ({os.strerror(number)}): see to it" in caplog.text


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_a_lock_that_another_process_has(number, tmp_path, monkeypatch):
    monkeypatch.setattr(files.fcntl, "flock", refuses(number))
    with pytest.raises(InputError, match="is in use by another process"), locked(tmp_path):
        pass


def test_a_lock_that_fails_otherwise_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files.fcntl, "flock", refuses(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as caught, locked(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path / ".lock")


def test_folders_that_cannot_be_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", refuses(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", refuses(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_what_exists_stays(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    refuse_existing("--to", tmp_path / "new")
    refuse_existing("--to", tmp_path / "link", force=True)
    with pytest.raises(
        InputError,
        match=r"--to exists already, got .*link'. Choose another name, or add force=True",
    ):
        refuse_existing("--to", tmp_path / "link")


def test_a_folder_is_free_once_its_holder_is_killed_though_a_process_that_it_forked_lives_on(
    tmp_path,
):
    """Training processes are forked; the system takes a moment to end them, too."""
    code = f"""
import os, time
from pathlib import Path
from fedskip.files import locked
with locked(Path({str(tmp_path)!r})):
    if not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        with (
            pytest.raises(InputError, match=f"is in use by another process .pid {holder.pid}."),
            locked(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
        with locked(tmp_path):
            os.kill(child, 0)  # it is still there
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    for name in (".lock", f".a.{os.getpid()}.part", "a"):
        (tmp_path / "out" / name).symlink_to("../mine")
    write_bytes(tmp_path / "out" / "a", b"new")
    assert (tmp_path / "out" / "a").read_bytes() == b"new"
    with (
        pytest.raises(InputError, match=r"\.lock must not be a link, got '../mine'"),
        locked(tmp_path / "out"),
    ):
        pass
    (tmp_path / "out" / ".lock").unlink()
    os.link(tmp_path / "mine", tmp_path / "out" / ".lock")
    with pytest.raises(InputError, match="with no other name"), locked(tmp_path / "out"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
