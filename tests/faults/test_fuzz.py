"""Whatever is written: it becomes a study, or is refused by an `InputError`, and soon."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedskip.config import Tree, assigned, build, bundled, load_yaml, plain
from fedskip.config.setting import KEYS
from fedskip.errors import InputError
from fedskip.methods.grammar import parse_many, registry, text
from fedskip.records.folder import Folder

DEADLINE = 2_000  # ms of an example, on a busy machine
FEW, MANY = 150, 20_000  # examples

WORDS = [
    *registry(), "fedskip", "mu", "period", "lr", "beta", "init", "random", "nan", "inf", "never", "None",
    "True", "1e39", "1e-400", "1x10,5", "9" * 30, "0", "-1", "0.5", "json:JSONDecoder", "nowhere:Mine",
]  # fmt: skip
SIGNS = [*"()[]{},:='\"\\*.-+# \n\t\0", "**", "lambda:", "β", "\udcff", "\u202e", "٣"]
VALUES = [
    "null", "true", "[]", "{}", "[1, 2]", "{a: 1}", "1e39", ".nan", "-.inf", "1e30", "-1", "0", "''", "x",
    "!!timestamp x", "!!python/name:os.system", "&a [*a]", "*b", "[[[[[[1]]]]]]", "2024-99-99", "0b_", "~",
    "'a\\0b'", '"\\0"', "fedavg", "fedprox(mu=[1, 2])", "@", "%", "|", ">", "? a", "- 1", "<<: {}", "1:2:3",
]  # fmt: skip
NAMES = [
    *KEYS,
    "local.lr",
    "local.batch",
    "model.name",
    "partition.beta",
    "settings",
    "most_runs",
    "threads",
    "x",
]

method_texts = st.one_of(
    st.lists(st.sampled_from(WORDS + SIGNS), max_size=14).map("".join),
    st.text(max_size=40),
    st.builds(
        lambda name, pairs: f"{name}({', '.join(f'{key}={value}' for key, value in pairs)})",
        st.sampled_from([*registry(), "fedskip"]),
        st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS + VALUES)), max_size=3),
    ),
)
assignments = st.lists(
    st.one_of(
        st.builds(
            "{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES) | st.text(max_size=12)
        ),
        st.text(max_size=20),
    ),
    min_size=1,
    max_size=4,
)
files = st.one_of(
    st.text(max_size=120),
    st.lists(
        st.builds("{}: {}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8
    ).map("\n".join),
    st.builds(
        lambda name, seed, edits: _mutated(
            bundled.find(name).read_text(encoding="utf-8"), seed, edits
        ),
        st.sampled_from(bundled.names()),
        st.integers(0, 2**32),
        st.integers(1, 6),
    ),
)


def _mutated(content: str, seed: int, edits: int) -> str:
    """A file in which lines and characters are lost, doubled, swapped, or become something else."""
    draw, lines = random.Random(seed), content.split("\n")
    for _ in range(edits):
        at = draw.randrange(len(lines))
        line = lines[at]
        place = draw.randrange(len(line) + 1)
        key, colon, _ = line.partition(":")
        changed = [
            line[:place] + draw.choice(SIGNS) + line[place:],
            line[:place] + line[place + 1 :],
            key + colon + " " + draw.choice(VALUES),
            draw.choice(NAMES) + ": " + draw.choice(VALUES),
            " " * draw.randrange(4) + line,
            line + "\n" + line,
            line[:place],
            "",
        ]
        lines[at] = draw.choice(changed)
    return "\n".join(lines)


def read_methods(entry: str) -> None:
    methods = parse_many(entry)
    assert parse_many([text(method) for method in methods]) == methods


def read_assignments(changes: list[str]) -> None:
    build(assigned(changes).over(Tree({"data": "synthetic", "methods": "fedavg"})))


def read_file(content: str, folder: Path) -> None:
    file = folder / "study.yaml"
    file.write_bytes(content.encode(errors="surrogatepass"))
    spec = build(load_yaml(file))
    kept = Folder(folder)  # its file names other files from where it lies
    kept.write(plain(spec), {})
    assert build(load_yaml(kept.file)) == spec


def fuzz(
    read: Callable[..., None], given_: Any, examples: int, note: Callable[..., None], area: str
) -> None:
    """Read many; each is refused by an `InputError` or accepted.

    The number is noted for the table.
    """
    tried = 0

    @settings(
        max_examples=examples,
        deadline=DEADLINE,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(given_)
    def one(value: Any) -> None:
        nonlocal tried
        tried += 1
        try:
            read(value)
        except InputError as error:
            said = str(error)
            assert "\n" not in said
            assert len(said) < 1_200

    one()
    note("area", area)
    note("fault", "fine")
    note("count", tried)


many = pytest.param(MANY, marks=pytest.mark.slow)


@pytest.mark.parametrize("examples", [FEW, many])
def test_methods(examples: int, record_property: Callable[..., None]) -> None:
    fuzz(read_methods, method_texts, examples, record_property, "fuzzed methods")


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY // 4, marks=pytest.mark.slow)])
def test_assignments(examples: int, record_property: Callable[..., None]) -> None:
    fuzz(read_assignments, assignments, examples, record_property, "fuzzed --set")


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY // 4, marks=pytest.mark.slow)])
def test_files(examples: int, tmp_path: Path, record_property: Callable[..., None]) -> None:
    fuzz(
        lambda content: read_file(content, tmp_path),
        files,
        examples,
        record_property,
        "fuzzed files",
    )
