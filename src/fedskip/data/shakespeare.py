"""SHAKESPEARE (LEAF): predict the next character of a role's lines from the 80 before it.

A client is a role. The raw text is Project Gutenberg's eBook #100, as in LEAF (Caldas et al., 2018).
LEAF writes every window out, 4.2 million strings of 80 characters. Here the text is kept once, as
symbol ids, and a window is its position in the text.
"""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedskip.data import archives, cache
from fedskip.data.dataset import Dataset, Split
from fedskip.errors import InputError, first_line, require
from fedskip.parsing import In

WINDOW = 80  # characters that a model sees; the target is the next one
GAP = WINDOW - 1  # windows left out between train and test, so that their inputs share no character
LOOKED_AT = 20_000  # test windows, of 356,921, that are used while training
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = len(VOCABULARY) - 1  # LEAF's find() gives -1, which its one-hot wraps to the last symbol
ACCEPTS = "Gutenberg's text of 1994, 1994-01-100.zip, also plain or .xz"

SOURCE = cache.Source(
    # the second is LEAF's address, the first where it has moved to
    urls=(
        "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
        "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
    ),
    digest=None,  # posted in several forms of the same text: the counts below identify the edition
)
GOLDEN = {"roles": 1_129, "windows": 4_226_158}  # counts of LEAF's README and parser

AUTHOR = "by William Shakespeare"
LAST_LINE = 124_195  # poems follow; LEAF counts from the file's second line
UNINDENTED = "THE COMEDY OF ERRORS"


@dataclass(frozen=True)
class Windows:
    """The pool of all windows of a text: sample i is text[i : i + 80] with target text[i + 80].

    Windows that run from one role into the next are in the pool, but in no split.
    """

    text: Tensor  # uint8 (n + 80,), symbol ids

    def __len__(self) -> int:
        return len(self.text) - WINDOW

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        at = index.unsqueeze(-1) + torch.arange(WINDOW + 1, device=index.device)
        ids = self.text.index_select(0, at.reshape(-1)).reshape(at.shape).long()
        return ids[..., :WINDOW], ids[..., WINDOW]

    def labels(self) -> np.ndarray:
        return self.text[WINDOW:].cpu().numpy()

    def to(self, device: torch.device, dtype: torch.dtype) -> Windows:
        return Windows(self.text.to(device))


def load(
    *, train_fraction: Annotated[float, In("(0, 1)", "use 0.9 as LEAF does")] = 0.9
) -> Dataset:
    """Load the data set: the first windows of every role are for training, the last ones for testing.

    A role that is too short for a test window behind the gap is left out. 0.9 leaves the paper's 660.
    """
    text, start, length, name = cache.read("shakespeare", "text", "start", "length", "name")
    windows = length - WINDOW
    train_windows = (train_fraction * windows).astype(np.int64)
    kept = train_windows + GAP < windows
    rule = "leaves no role with a test window"
    require("data.train_fraction", bool(kept.any()), rule, train_fraction, "use 0.9 as LEAF does")
    start, windows, train_windows = start[kept], windows[kept], train_windows[kept]

    owner = np.full(len(text) - WINDOW, -1, np.int32)  # -1: windows of other roles, or across two
    owner[ranges(start, start + windows)] = np.repeat(np.arange(len(start)), windows)
    train = ranges(start, start + train_windows)
    test = ranges(start + train_windows + GAP, start + windows)

    def split(seed: int) -> Split:
        return train, test  # sequential, as LEAF's: a random one would leak through the overlap

    return Dataset(
        name="shakespeare",
        samples=Windows(torch.from_numpy(text)),
        split=split,
        classes=len(VOCABULARY),
        owner=owner,
        owner_names=tuple(name[kept].tolist()),
        defaults={
            "model.name": "lstm", "partition.kind": "natural", "clients": len(start), "cohort": 10,
            "rounds": 200, "eval_samples": LOOKED_AT,
        },
    )  # fmt: skip


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the raw text (plain, .xz or .zip) as arrays for the cache; other editions are refused."""
    try:
        texts = roles(decode(path))
    except InputError as error:
        raise InputError(str(path), error.rule, fix=error.fix) from error
    lengths = np.array([len(text) for text in texts.values()], np.int64)
    counts = {"roles": len(texts), "windows": int((lengths - WINDOW).sum())}
    wrong = [f"{counts[k]:,} {k} instead of {n:,}" for k, n in GOLDEN.items() if counts[k] != n]
    if wrong:
        rule = f"is not the edition of the plays that LEAF uses: it has {', '.join(wrong)}"
        raise InputError(str(path), rule, fix=f"take the 1994 edition, {SOURCE.urls[0]}")
    return {
        "text": encode("".join(texts.values())),
        "start": np.cumsum(lengths) - lengths,
        "length": lengths,
        "name": np.array(list(texts)),
    }


def decode(path: Path) -> str:
    """The text of a plain, .xz or .zip file."""
    if zipfile.is_zipfile(path):
        texts = archives.contents(path, lambda name: name.lower().endswith(".txt"))
        raw = b"".join(content for _, content in texts)
    else:
        try:
            raw = archives.read_unpacked(path)
        except archives.UNREADABLE as error:
            rule = f"cannot be read as a text, .xz or .zip file ({first_line(error)})"
            raise InputError(str(path), rule) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def encode(text: str) -> np.ndarray:
    """Symbol ids, uint8; characters outside of the vocabulary become UNKNOWN."""
    table = np.full(128, UNKNOWN, np.uint8)
    table[[ord(symbol) for symbol in VOCABULARY]] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return table[np.minimum(points, 127)]  # 127 is DEL, not in the vocabulary


def ranges(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """[start[0], ..., end[0] - 1, start[1], ...]"""
    count = end - start
    first = np.cumsum(count) - count  # where a range begins in the result
    return np.repeat(start - first, count) + np.arange(count.sum())


def roles(text: str) -> dict[str, str]:
    """What each role says, as one text, by `PLAY_ROLE` in order of appearance.

    Only roles with more than two lines and at least one window count, in plays with more than one role.
    """
    texts: dict[str, str] = {}
    for title, lines in plays(text):
        speeches = speech(lines, indented=title != UNINDENTED)
        if len(speeches) <= 1:
            continue  # a poem
        for role, spoken in speeches.items():
            joined = re.sub("  +", " ", "".join(f"{line} " for line in spoken))
            if len(spoken) > 2 and len(joined) > WINDOW:
                texts[re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))] = joined
    return texts


def plays(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of every play: from its author's line to that of the next."""
    lines = text.splitlines()[1 : LAST_LINE + 2]
    starts = [i for i, line in enumerate(lines) if AUTHOR in line][1:]  # the first is the sonnets'
    if not starts:
        fix = "it is Project Gutenberg's number 100, The Complete Works of William Shakespeare"
        raise InputError("shakespeare", "is another text: no play begins in it", ..., fix)
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        above = (lines[start - k].strip() for k in range(2, 8))
        yield next(filter(None, above), ""), lines[start + 1 : end]


def speech(lines: list[str], indented: bool) -> Mapping[str, list[str]]:
    """The lines of every role of a play. Lines that fit no rule are skipped, and end no speech.

    A speech begins after two spaces, as `  HAMLET. To be`, and continues after four. One play has lost
    its indentation: there a speech continues until the heading of an act or an editor's `<<` note.
    """
    indent = "  " if indented else ""
    opening = re.compile(indent + r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
    following = re.compile(2 * indent + "(.*)")
    spoken: dict[str, list[str]] = defaultdict(list)
    speaker: str | None = None
    for line in lines:
        if match := opening.match(line):
            speaker = match[1].upper()  # SIR Toby is SIR TOBY
            if not indented and speaker.startswith("ACT "):
                speaker = None
            else:
                spoken[speaker].append(match[2])
        elif speaker and (match := following.match(line)):
            if not indented and match[1].startswith("<"):
                speaker = None
            else:
                spoken[speaker].append(match[1])
    return spoken
