"""The documents say what the code does: columns, keys, defaults, methods, links, and code that runs."""

from __future__ import annotations

import dataclasses
import re
import runpy
import tomllib
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedskip
from fedskip.config import Setting, StudySpec
from fedskip.data.catalogue import CATALOGUE
from fedskip.data.partitions import KINDS
from fedskip.engine import Local
from fedskip.engine.local import Decay
from fedskip.methods import parse, registry
from fedskip.methods.base import Federation
from fedskip.models import MODELS, build
from fedskip.models.export import FORMATS as SUFFIXES
from fedskip.models.metrics import METRICS
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.table import Table
from fedskip.report.figures import Figures
from studies import numbers, study, weights

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OURS = re.compile(  # links into this repository, as the README has them for package indexes
    rf"{REPOSITORY}/blob/main/|"
    rf"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/main/"
)
RUNNABLE = re.compile(r"<!-- runnable -->\n```python\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)  # in the README all of them run


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(document: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", document, re.DOTALL | re.MULTILINE
    )
    assert found, f"no heading {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The cells of the first table, without its head."""
    lines = [
        line
        for line in re.split(r"\n\n", text[text.index("|") :])[0].splitlines()
        if line[:1] == "|"
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> str:
    return cell.strip("`")


@pytest.mark.parametrize(
    ("heading", "columns"),
    [("history.csv", HISTORY), ("summary.csv", SUMMARY)],
    ids=["history", "summary"],
)
def test_columns(heading: str, columns: tuple[str, ...]) -> None:
    assert [code(row[0]) for row in table(section(read("docs/numbers.md"), heading))] == list(
        columns
    )


def test_columns_of_clients(tmp_path: Path) -> None:
    study(tmp_path / "out", methods="fedavg", rounds=1, seeds=1, client_accuracy=True).run()
    columns = Table.read(tmp_path / "out" / "clients.csv").columns
    assert [code(row[0]) for row in table(section(read("docs/numbers.md"), "clients.csv"))] == list(
        columns
    )


@pytest.mark.parametrize(
    ("heading", "described"),
    [("Keys of a setting", Setting), ("Local training", Local), ("Keys of the study", StudySpec)],
)
def test_keys(heading: str, described: type) -> None:
    rows = table(section(read("docs/studies.md"), heading))
    fields = {field.name: field for field in dataclasses.fields(described) if field.init}
    for name in ("record", "earlier") if described is Setting else ():  # are no keys
        fields.pop(name)
    assert {code(row[0]) for row in rows} == fields.keys()
    for key, default, *_ in rows:
        expected: Any = fields[code(key)].default
        if default.startswith("`"):
            expected = list(expected) if isinstance(expected, tuple) else expected
            assert yaml.safe_load(code(default)) == expected, key
        else:  # in words: it comes from elsewhere
            assert expected in (None, dataclasses.MISSING), key


def test_kinds_rules_and_names() -> None:
    studies = read("docs/studies.md")
    assert [code(row[0]) for row in table(section(studies, "Partitions"))] == list(KINDS)
    rules = table(studies[studies.index("**Learning-rate rules.**") :])
    for rule, _ in rules:
        Decay.parse(code(rule))
    keys = {code(row[0]): row[2] for row in table(section(studies, "Keys of a setting"))}
    assert all(f"`{name}`" in keys["model"] for name in MODELS)
    assert all(f"`{name}`" in keys["data"] for name in CATALOGUE)
    details = re.findall(r"^## (.*)$", read("docs/data.md"), re.MULTILINE)
    assert all(name in " ".join(details).lower().replace("-", "") for name in CATALOGUE)


def test_models_table() -> None:
    models = read("docs/models.md")
    rows = table(section(models, "Models that come with fedskip"))
    assert [code(row[0]) for row in rows] == list(MODELS)
    from_data, sized = ("classes", "inputs"), list[str]()
    for name, options, count, _ in rows:
        takes = {
            option.name: option.default
            for option in signature(MODELS[code(name)]).parameters.values()
        }
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in takes.items()}
        assert yaml.safe_load(code(options)) == {
            k: v for k, v in plain.items() if k not in from_data
        }, name
        with torch.device("meta"):
            assert count == f"{sum(p.numel() for p in build(code(name)).parameters()):,}", name
        assert "classes" in takes, name
        sized += [name] if "inputs" in takes else []
    assert f"{', '.join(sized[:-1])} and {sized[-1]} take `inputs`" in models


def test_methods_as_text() -> None:
    *entries, _ = table(
        section(read("docs/studies.md"), "Methods as text")
    )  # the last is no real one
    assert len(entries) > 3
    for entry, _ in entries:
        parse(code(entry))


def test_methods_table() -> None:
    rows = table(section(read("docs/methods.md"), "All methods in one table"))
    methods = [parse(code(row[0]))[0] for row in rows]
    assert {type(method) for method in methods} == set(registry().values())
    for method in methods:  # what is written is the default, so that it tells the defaults
        assert method == type(method)(period=method.period)
    # the bytes are 4P each way, and more where the server's state travels along
    costs = {code(row[0]).split("(")[0]: row[4] for row in rows}
    one = Federation(1, torch.zeros(1), lambda: torch.zeros(1))
    sends = {name for name, method in registry().items() if method().sends(method().start(one))}
    assert {name for name, bytes_ in costs.items() if "D" in bytes_} == sends
    memory = {code(row[0]).split("(")[0]: row[3] for row in rows}
    remembers = {name for name, method in registry().items() if method.remembers}
    assert {name for name, cell in memory.items() if cell != "–"} == remembers


def test_every_method_has_its_details() -> None:
    details = read("docs/methods.md")
    headings = " ".join(re.findall(r"^### (.*)$", details, re.MULTILINE))
    assert all(method.title in headings for method in registry().values())


def test_version() -> None:
    assert f"## [{fedskip.__version__}]" in read("CHANGELOG.md")


def test_the_readme_is_short_and_works_on_a_package_index() -> None:
    text = read("README.md")
    assert len(text.split()) <= 900
    assert "<!--" not in text
    assert not [
        link for link in re.findall(r"\]\(([^)]+)\)", text) if not re.match("https://|#", link)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        inside = OURS.match(path)
        if re.match(r"https?:", link) and not inside:
            continue
        target = ROOT / path[inside.end() :] if inside else document.parent / path
        target = target if path else document
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings
            }, link


# --- docs/python.md ------------------------------------------------------------------------------------

API: dict[str, Any] = {
    name: getattr(fedskip, name) for name in fedskip.__all__ if name != "__version__"
}
SHOWN = {
    "Results": "Results.read(folder, metric=None)",
    "Figures": "results.plot",
}  # not made by users


def called(name: str, thing: Any) -> str:
    """A function as one calls it: its arguments and their defaults, without types."""
    parts, keywords = list[str](), False
    for option in signature(thing).parameters.values():
        if option.kind is option.KEYWORD_ONLY and not keywords:
            parts, keywords = [*parts, "*"], True
        plain = option.default is not ... and "factory" not in repr(option.default)
        default = (
            "" if option.default is option.empty else f"={repr(option.default) if plain else '...'}"
        )
        parts.append(("**" if option.kind is option.VAR_KEYWORD else "") + option.name + default)
    return f"{name}({', '.join(part for part in parts if part != 'self')})"


def members(kind: type) -> set[str]:
    """What users may call or read; the fields of what they make themselves stand in its signature."""
    fields = (
        {field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")}
        if dataclasses.is_dataclass(kind)
        else set()
    )
    found = fields if kind.__name__ == "Results" else set[str]()
    for name in {
        name
        for base in kind.__mro__
        if base.__module__.startswith("fedskip")
        for name in vars(base)
    }:
        if not name.startswith("_") and name not in fields:
            thing = getattr(kind, name)
            found.add(called(name, thing) if callable(thing) else name)
    return found


def test_the_python_page_has_every_name() -> None:
    page = read("docs/python.md")
    headings = set(re.findall(r"^### (\w+)$", page + read("docs/core.md"), re.MULTILINE))
    methods = {code(row[0]) for row in table(section(page, "Methods"))}
    plain = {
        name
        for name, thing in API.items()
        if isinstance(thing, type) and thing in registry().values()
    }
    assert headings == API.keys() - plain | {"Figures"}
    assert methods == {called(name, API[name]) for name in plain}
    index = page[: page.index("## Studies")]
    assert all(f"`{name}`" in index for name in headings), "listed at the top"


@pytest.mark.parametrize(
    "name", sorted({*API, "Figures"} - {m.__name__ for m in registry().values()})
)
def test_the_python_page_has_signatures_and_members(name: str) -> None:
    thing = {"Figures": Figures, **API}[name]
    text = section(read("docs/python.md") + read("docs/core.md"), name)
    shown = re.search(r"^`(.*)`$", text, re.MULTILINE)
    assert shown
    expected = name if name == "Interrupted" else SHOWN.get(name) or called(name, thing)
    assert shown[1] == expected
    if isinstance(thing, type) and members(thing):
        assert {code(row[0]) for row in table(text)} == members(thing)


def test_the_python_page_has_every_suffix() -> None:
    rows = table(section(read("docs/python.md"), "export"))
    assert [suffix for row in rows for suffix in map(code, row[0].split(", "))] == list(SUFFIXES)


BLOCKS = [
    pytest.param(block, id=f"{document.name}-{number}")
    for document in DOCUMENTS
    for number, block in enumerate(
        (PYTHON if document == ROOT / "README.md" else RUNNABLE).findall(
            document.read_text(encoding="utf-8")
        )
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What readers would paste into a file works, here with fewer rounds."""
    ran = []

    class Short(fedskip.Study):
        def __init__(self, out: Any = None, **keys: Any) -> None:
            local = {**keys.get("local", {}), "max_steps": 2}
            super().__init__(
                out, **keys | {"rounds": 5, "seeds": 1, "compile": False, "local": local}
            )

        def run(self, *arguments: Any, **options: Any) -> fedskip.Results:
            ran.append(super().run(*arguments, **options))
            return ran[-1]

    name = "pasted_" + re.sub(r"\W", "_", request.node.callspec.id)
    (tmp_path / f"{name}.py").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fedskip, "Study", Short)
    runpy.run_path(f"{name}.py", run_name="__main__")
    assert bool(ran) == ("Study(" in block)
    rows = [row for done in ran for row in done.summary.to_dict("records")]
    assert all(row["rounds"] == 5 and not row["diverged"] for row in rows)


def test_there_is_code_to_run() -> None:
    assert len(BLOCKS) >= 3


def test_loop_runs_do_not_depend_on_their_company(tmp_path: Path) -> None:
    """docs/determinism.md: with `loop`, other methods and seeds in the setting change no bits."""
    study(tmp_path / "many", engine="loop", methods="fedavg, fedskip(period=3), scaffold").run()
    study(tmp_path / "one", engine="loop", methods="fedskip(period=3)", seeds=1).run()
    many, one = weights(tmp_path / "many"), weights(tmp_path / "one")
    assert one.items() <= many.items()
    assert all(row in numbers(tmp_path / "many") for row in numbers(tmp_path / "one"))


@pytest.mark.parametrize(
    "keys", [{"slot_accuracy": True}, {"client_accuracy": True}, {"workers": 1}], ids=str
)
def test_what_does_not_change_bits(tmp_path: Path, keys: dict[str, Any]) -> None:
    few = {"methods": "fedavg, fedskip(period=3)", "seeds": 1, "engine": "loop"}
    study(tmp_path / "without", **few).run()
    study(tmp_path / "with", **few | keys).run()
    assert weights(tmp_path / "without") == weights(tmp_path / "with")


def test_metrics_table() -> None:
    rows = table(section(read("docs/models.md"), "Metrics"))
    assert [code(row[0]) for row in rows] == list(METRICS)
    for name, better, shown, kinds, words in rows:
        metric = METRICS[code(name)]
        assert better == ("higher" if metric.higher_is_better else "lower"), name
        assert shown == ("in %" if metric.percent else "as it is"), name
        assert not metric.of or kinds == ", ".join(metric.of), name
        assert ("Whole test set" in words) == metric.whole, name
        assert ("fedskip[metrics]" in words) == bool(metric.needs), name
