"""The studies that come with the package: YAML files beside this one."""

from dataclasses import replace
from pathlib import Path

from fedskip.config.tree import Tree, load_yaml
from fedskip.errors import InputError, how_to_resume, unknown

QUICKSTART = "quickstart"
_FILES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}


def names() -> list[str]:
    """The bundled studies."""
    return list(_FILES)


def papers() -> list[str]:
    """The paper's studies: all but the quickstart, tables first."""
    return sorted(
        _FILES.keys() - {QUICKSTART}, key=lambda name: (not name.startswith("table"), name)
    )


def settings() -> list[str]:
    """The settings of the bundled studies, as STUDY/SETTING."""
    return [
        f"{name}/{entry['name']}"
        for name, file in _FILES.items()
        for entry in load_yaml(file).values["settings"]
    ]


def words(name: str) -> str:
    """What a bundled study is: the first comment of its file."""
    first = _FILES[name].read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def find(study: str) -> Path:
    """The file of a study: a bundled name, or a path. A bundled name comes first."""
    file = Path(study)
    if study in _FILES or file.is_file():
        return _FILES.get(study, file)
    if file.name == study and not file.suffix and not file.exists():
        raise unknown("study", study, _FILES)
    fix = f"give a YAML file or one of: {', '.join(_FILES)}"
    if (file / "study.yaml").exists():
        fix = f"resume it with {how_to_resume(study)}"
    raise InputError("study", f"is {'a folder' if file.is_dir() else 'not a file'}", study, fix)


def load(study: str, *, trust: bool = False) -> Tree:
    """The tree of a study: a bundled name, one of its settings as NAME/SETTING, or a path.

    A bundled name comes before a file or folder of that name; a file comes before NAME/SETTING. `trust`: a file may
    name code.
    """
    name, _, setting = study.partition("/")
    if not setting or name not in _FILES or Path(study).is_file():
        return load_yaml(find(study), trust=trust)
    tree = load_yaml(_FILES[name])
    return replace(tree, values={**tree.values, "name": f"{name}-{setting}"}, only=(setting,))
