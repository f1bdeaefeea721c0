"""What users' code does to the process is undone and named."""

import os
import sys
from pathlib import Path

import pytest

from fedskip import InputError
from fedskip.user_code import contained


def moves_and_fails():
    os.chdir("/")
    raise ValueError("its own error")


def test_the_folder_is_put_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(InputError, match="it must not change the working folder, got '/'"),
        contained("it"),
    ):
        os.chdir("/")
    assert Path.cwd() == tmp_path
    with pytest.raises(ValueError, match="its own error"), contained():
        moves_and_fails()
    assert Path.cwd() == tmp_path


def test_an_exit_says_where():
    for leave in (sys.exit, exit):
        with (
            pytest.raises(InputError, match=rf"must not exit \(SystemExit: 0\) \({__file__} line"),
            contained(),
        ):
            leave(0)


def test_streams_are_open_again(capfd):
    for close in (lambda: os.close(1), lambda: os.dup2(2, 1), lambda: sys.__stdout__.close()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))
            patch.setattr(sys, "__stdout__", sys.stdout)
            with pytest.raises(InputError, match="must not close stdout"), contained():
                close()
            print("heard", flush=True)
        assert capfd.readouterr().out == "heard\n"


def test_a_folder_that_is_gone_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with contained():
        pass
