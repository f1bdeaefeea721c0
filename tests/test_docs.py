"""The documents say what the code does: columns, keys, defaults, methods, links, and code that runs."""

from __future__ import annotations

import re
import runpy
import shlex
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.main import get_command

import fedskip
from docs import hooks
from fedskip.cli import app
from fedskip.config.study import build
from fedskip.config.tree import Tree, load_yaml
from fedskip.data.catalogue import CATALOGUE
from fedskip.data.partitions import KINDS
from fedskip.engine.local import Decay
from fedskip.methods import parse, registry
from fedskip.methods.base import Federation
from fedskip.models import MODELS
from fedskip.models import build as build_model
from fedskip.models.export import FORMATS as SUFFIXES
from fedskip.models.metrics import METRICS
from fedskip.records.history import HISTORY, SUMMARY
from fedskip.records.table import Table
from fedskip.report.figures import Figures
from studies import numbers, study, weights

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# a block of code: why it is not run, if so; its language; itself
BLOCK = re.compile(
    r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


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


def test_kinds_rules_and_names() -> None:
    studies = read("docs/studies.md")
    assert [code(row[0]) for row in table(section(studies, "Partitions"))] == list(KINDS)
    rules = table(section(studies, "Learning rates"))
    for rule, _ in rules:
        Decay.parse(code(rule))
    assert {code(row[0]) for row in table(read("docs/data.md"))} > CATALOGUE.keys()
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
            assert count == f"{sum(p.numel() for p in build_model(code(name)).parameters()):,}", (
                name
            )
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
        inside = hooks.OURS.match(path)
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


# --- the site --------------------------------------------------------------------------------------------


def test_the_python_page_has_every_name() -> None:
    names = [
        name
        for row in table(section(read("docs/python.md"), "Names"))
        for name in row[1].split(", ")
    ]
    assert sorted(map(code, names)) == sorted({*fedskip.__all__, "Figures"} - {"__version__"})


@pytest.mark.parametrize("name", sorted({*fedskip.__all__, "Figures"} - {"__version__"}))
def test_what_users_call_has_a_docstring(name: str) -> None:
    thing = {"Figures": Figures}.get(name) or getattr(fedskip, name)
    assert getdoc(thing)
    for kind in thing.__mro__ if isinstance(thing, type) else ():
        for member, made in vars(kind).items() if kind.__module__.startswith("fedskip") else ():
            made = getattr(made, "func", getattr(made, "__func__", made))
            if not member.startswith("_") and (callable(made) or isinstance(made, property)):
                assert getdoc(made), member


def test_links_of_the_site() -> None:
    text = "[a](../src/fedskip/rng.py) [b](data.md#tables) [c](../README.md) ![d](slots.svg)"
    assert hooks.relinked(text, "core.md") == (
        f"[a]({hooks.REPOSITORY}/blob/main/src/fedskip/rng.py) [b](data.md#tables) [c](index.md) ![d](slots.svg)"
    )
    text = f"[a]({hooks.REPOSITORY}/blob/main/docs/results/README.md#x) [b](LICENSE) [c](https://x.org)"
    assert hooks.relinked(text, "index.md") == (
        f"[a](results/README.md#x) [b]({hooks.REPOSITORY}/blob/main/LICENSE) [c](https://x.org)"
    )
    keys = hooks.relinked("[k](../../src/fedskip/config/setting.py)", "results/runs.md")
    assert keys == "[k](../reference/keys.md)"


def test_every_page_has_its_place() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", read("mkdocs.yml"), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | set(hooks.ELSEWHERE.values()))


def test_the_reference_has_keys_and_commands() -> None:
    assert "| `lr` | `0.01` | The learning rate η. |" in hooks.content(
        "src/fedskip/config/setting.py"
    )
    commands = hooks.content("src/fedskip/cli/commands.py")
    assert "## fedskip data show\n" in commands
    assert "`--grace SECONDS`" in commands
    assert "::: fedskip.study.study.Study\n" in hooks.content("src/fedskip/__init__.py")


def test_the_notebooks_are_pages() -> None:
    page = hooks.content("examples/skipping.ipynb")
    assert page.startswith("# ")
    assert "```python\nimport fedskip\n" in page
    assert 'src="data:image/png;base64,' in page


def test_the_python_page_has_every_suffix() -> None:
    rows = table(section(read("docs/python.md"), "Trained models"))
    assert [suffix for row in rows for suffix in map(code, row[0].split(", "))] == list(SUFFIXES)


def blocks(language: str) -> list[Any]:
    """The blocks of all pages in a language, but for those that say why they are not run."""
    return [
        pytest.param(block, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number, (why_not, known, block) in enumerate(
            BLOCK.findall(document.read_text(encoding="utf-8"))
        )
        if known == language and not why_not
    ]


@pytest.mark.parametrize("block", blocks("yaml"))
def test_studies_are_read(block: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(block, encoding="utf-8")
    tree = load_yaml(tmp_path / "study.yaml", trust=True)
    assert build(Tree({"data": "synthetic", "methods": "fedavg", **tree.values})).settings


@pytest.mark.parametrize("block", blocks(""))
def test_commands_are_known(block: str) -> None:
    for line in re.findall(r"^fedskip (.*)$", block, re.MULTILINE):
        command: Any = get_command(app)
        words = shlex.split(line.partition(" > ")[0], comments=True)
        while words and hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("fedskip", words)


def test_no_block_is_in_another_language() -> None:
    assert not blocks("bash")
    pages = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert {language for _, language, _ in BLOCK.findall(pages)} == {"", "bash", "python", "yaml"}


@pytest.mark.parametrize("block", blocks("python"))
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
