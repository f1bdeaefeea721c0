"""What the site has beside the pages of this folder: made when mkdocs builds it, never committed.

Pages and notebooks from elsewhere get a place, the reference is generated from the code, and links
lead to a page of the site if there is one, else to the repository.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
OURS = re.compile(REPOSITORY.replace("github", "(github|raw.githubusercontent)") + "(/blob)?/main/")
# pages that do not lie in docs/, by their path in the repository
ELSEWHERE = {
    "README.md": "index.md",
    "AGENTS.md": "working.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/own_data.ipynb": "notebooks/own_data.md",
    "examples/skipping.ipynb": "notebooks/skipping.md",
    "src/fedskip/__init__.py": "reference/python.md",
    "src/fedskip/config/setting.py": "reference/keys.md",
    "src/fedskip/cli/commands.py": "reference/commands.md",
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=content(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return relinked(markdown, page.file.src_uri)


def content(source: str) -> str:
    """A page from a file outside of docs/."""
    made = {"__init__.py": python_page, "setting.py": keys_page, "commands.py": commands_page}
    if page := made.get(posixpath.basename(source)):
        return page()
    text = (ROOT / source).read_text(encoding="utf-8")
    return notebook_page(json.loads(text)) if source.endswith(".ipynb") else text


def relinked(markdown: str, page: str) -> str:
    """A page whose links to files of the repository work on the site."""
    folder = posixpath.dirname({v: k for k, v in ELSEWHERE.items()}.get(page, f"docs/{page}"))

    def target(link: re.Match[str]) -> str:
        path, mark, anchor = link[1].partition("#")
        if not path or (re.match(r"\w+:", path) and not OURS.match(path)):
            return link[1]
        here = "" if OURS.match(path) else folder
        path = posixpath.normpath(posixpath.join(here, OURS.sub("", path)))
        inside = ELSEWHERE.get(path) or path.removeprefix("docs/")
        if path not in ELSEWHERE and not (inside != path and (ROOT / path).is_file()):
            return f"{REPOSITORY}/blob/main/{path}{mark}{anchor}"
        return posixpath.relpath(inside, posixpath.dirname(page) or ".") + mark + anchor

    parts = FENCED.split(markdown)
    return "".join(part if i % 2 else LINK.sub(target, part) for i, part in enumerate(parts))


def notebook_page(notebook: dict[str, Any]) -> str:
    """The cells of a notebook with what they show."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = {kind: "".join(data) for kind, data in output.get("data", {}).items()}
            if picture := shown.get("image/png", "").replace("\n", ""):
                parts.append(f'<img alt="the figure" src="data:image/png;base64,{picture}">')
            elif table := re.sub("(?s)<style.*?</style>", "", shown.get("text/html", "")):
                parts.append(re.sub(r"\n\s*\n", "\n", table))
            else:
                parts.append(f"```text\n{shown.get('text/plain', '')}\n```")
    return "\n\n".join(parts)


def python_page() -> str:
    """Every public name, grouped as docs/python.md does, with its docstring."""
    import fedskip
    from fedskip.report.figures import Figures

    guide = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    parts = ["# Python API", "Every name of `import fedskip`. [The guide](../python.md) uses them."]
    for title, names in re.findall(r"^\| ([^|`]+) \| (`.*`) \|$", guide, re.MULTILINE):
        kinds = [getattr(fedskip, name, Figures) for name in re.findall(r"`(\w+)`", names)]
        parts += [f"## {title}", *(f"::: {kind.__module__}.{kind.__qualname__}" for kind in kinds)]
    return "\n\n".join(parts)


def keys_page() -> str:
    """The keys of a study with their defaults, from the classes that declare them."""
    from fedskip.config import Setting, StudySpec
    from fedskip.engine.local import Local
    from fedskip.engine.upload_filters import Attack, Privacy

    parts = ["# Keys of a study", "All that a study may say. [Studies](../studies.md) shows how."]
    for kind in (Setting, Local, Privacy, Attack, StudySpec):
        rows = ["| key | default | meaning |", "|---|---|---|"]
        for name, text in described(kind).items():
            default = vars(kind).get(name)  # a class has its fields' defaults as attributes
            shown = "" if default is None else f"`{json.dumps(default)}`".replace('"', "")
            rows.append(f"| `{name}` | {shown} | {' '.join(text.split())} |")
        parts += [f"## {kind.__name__.removesuffix('Spec')}", "\n".join(rows)]
    return "\n\n".join(parts)


def described(kind: type) -> dict[str, str]:
    """The fields of a class that have a text below them, with that text."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    return {
        before.target.id: after.value.value  # type: ignore[attr-defined, union-attr]
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr)
    }


def commands_page() -> str:
    """Every command with its help, arguments and options."""
    import typer

    from fedskip.cli import app

    parts = ["# Commands", "What `fedskip COMMAND --help` prints."]
    waiting = [("fedskip", typer.main.get_command(app))]
    for name, command in waiting:  # which grows
        waiting += [(f"{name} {k}", each) for k, each in getattr(command, "commands", {}).items()]
        context = command.context_class(command, info_name=name)
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        records = filter(None, (each.get_help_record(context) for each in command.params))
        rows = ["| argument, option | |\n|---|---|", *("| `{}` | {} |".format(*r) for r in records)]
        parts += [f"## {name}", command.help or "", f"```text\n{usage}\n```", "\n".join(rows)]
    return "\n\n".join(parts)
