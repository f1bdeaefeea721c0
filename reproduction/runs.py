"""Our runs: one folder for each study, with `study.yaml`, `summary.csv` and `history.csv.xz`.

`runs/runs.csv` has a row for each folder: the command that made it, its commit, date, device and minutes.
Adding runs means adding a folder and a row, which `python -m reproduction add OUT` does.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

RUNS = Path(__file__).parent / "runs"
FIELDS = ["folder", "command", "seeds", "commit", "date", "device", "minutes", "note"]
SCORES = [
    "best",
    "last",
    "mean_tail",
    "best_val",
    "merged",
    "full_test",
]  # shares, shown in percent
ACCURACIES = ["test_accuracy", "val_accuracy", "slot_accuracy"]


@dataclass(frozen=True, eq=False)
class StudyFolder:
    """A finished study: its settings as `study.yaml` has them, and its tables with accuracies in percent."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def yaml(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.path / "study.yaml").read_text("utf-8"))
        return found

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The keys of each setting, by its name."""
        shared = {key: value for key, value in self.yaml.items() if key != "settings"}
        return {own["name"]: shared | own for own in self.yaml["settings"]}

    def record(self, setting: str) -> Mapping[str, Any]:
        """What the study noted about a setting while it ran, such as its machine."""
        found: Mapping[str, Any] = self.yaml.get("record", {}).get("settings", {}).get(setting, {})
        return found

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each run."""
        return _in_percent(_read_csv(self.path / "summary.csv"), SCORES)

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row for each evaluation; empty where the history was not kept."""
        for name in ("history.csv", "history.csv.xz"):
            if (self.path / name).exists():
                return _in_percent(_read_csv(self.path / name), ACCURACIES)
        return pd.DataFrame(columns=["run", "round", "merges", *ACCURACIES])


def _read_csv(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, dtype={"period": str}, low_memory=False)


def _in_percent(table: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    for name in names:
        if name in table:
            table[name] = 100 * table[name]
    return table


def read_studies(folders: Iterable[Path] = ()) -> tuple[StudyFolder, ...]:
    """The studies in these folders, or in folders inside them; by default our own, as `runs.csv` orders them."""
    known = list(folders)
    if not known:
        return tuple(StudyFolder(RUNS / name) for name in list_runs()["folder"])
    found = []
    for folder in known:
        inside = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
        finished = [path for path in inside if (path / "summary.csv").exists()]
        if not finished:
            raise SystemExit(f"error: {folder} holds no finished study: there is no summary.csv")
        found += [StudyFolder(path) for path in finished]
    return tuple(found)


def list_runs() -> pd.DataFrame:
    """`runs.csv`: how each folder was made."""
    return pd.read_csv(RUNS / "runs.csv", dtype=str, keep_default_na=False)


def add(out: Path, name: str, command: str, note: str = "", to: Path = RUNS) -> Path:
    """Keep a finished study: copy its tables to `runs/NAME`, compress its history, add a row to `runs.csv`."""
    study, kept = StudyFolder(out), to / name
    if kept.exists():
        raise SystemExit(f"error: {kept} exists already; choose another --name")
    if not (out / "summary.csv").exists():
        raise SystemExit(f"error: {out} is not finished: it holds no summary.csv")
    kept.mkdir(parents=True)
    for file in ("study.yaml", "summary.csv"):
        shutil.copyfile(out / file, kept / file)
    if (out / "history.csv").exists():
        packed = lzma.compress((out / "history.csv").read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (kept / "history.csv.xz").write_bytes(packed)
    setting = next(iter(study.settings))
    seconds = float(study.history["seconds"].max()) if len(study.history) else 0.0
    row = {
        "folder": name,
        "command": command,
        "seeds": ", ".join(map(str, sorted(study.summary["seed"].unique()))),
        "commit": "not noted",
        "date": time.strftime("%Y-%m-%d", time.gmtime((out / "summary.csv").stat().st_mtime)),
        "device": str(study.record(setting).get("machine", {}).get("device_name", "not noted")),
        "minutes": f"{int(seconds // 60)}:{int(seconds % 60):02}",
        "note": note,
    }
    table = to / "runs.csv"
    before = pd.read_csv(table, dtype=str, keep_default_na=False) if table.exists() else None
    pd.concat([before, pd.DataFrame([row], columns=FIELDS)]).to_csv(table, index=False)
    return kept


def run_again(name: str) -> pd.DataFrame:
    """Run the command of a folder once more and compare every column but the seconds.

    Gives a row for each table: how many rows it has and how many of them differ. On the same device with
    the same versions none should.
    """
    [row] = list_runs().query("folder == @name").to_dict("records") or [None]
    if row is None:
        raise SystemExit(f"error: {name} is not one of our runs: see {RUNS / 'runs.csv'}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        arguments = [sys.executable, "-m", *_words(row["command"]), "--out", str(out)]
        subprocess.run(arguments, check=True)
        return pd.DataFrame([_differences(StudyFolder(RUNS / name), StudyFolder(out))]).T


def _words(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


def _differences(old: StudyFolder, new: StudyFolder) -> dict[str, str]:
    found = {}
    for table, keys in (("summary", ["run"]), ("history", ["run", "round"])):
        before, after = (
            getattr(one, table)
            .set_index(keys)
            .drop(columns="seconds", errors="ignore")
            .sort_index()
            for one in (old, new)
        )
        if len(before):
            shared = [name for name in before if name in after]
            same = before[shared].eq(after[shared]) | before[shared].isna() & after[shared].isna()
            found[table] = f"{len(before)} rows, {int((~same.all(axis=1)).sum())} differ"
    return found
