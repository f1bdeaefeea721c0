"""The studies that come with the package: YAML files beside this one."""

from pathlib import Path

from fedskip.config.tree import Tree, load_yaml
from fedskip.errors import InputError, how_to_resume, unknown

QUICKSTART = "quickstart"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The bundled studies."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def papers() -> list[str]:
    """The paper's studies: all but the quickstart, tables first."""
    return sorted(
        set(names()) - {QUICKSTART}, key=lambda name: (not name.startswith("table"), name)
    )


def settings() -> list[str]:
    """The settings of the paper's studies, as STUDY/SETTING."""
    trees = {name: load_yaml(path(name)).values for name in papers()}
    return [f"{name}/{own['name']}" for name, tree in trees.items() for own in tree["settings"]]


def words(name: str) -> str:
    """What a bundled study is: the first comment of its file."""
    first = path(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def path(name: str) -> Path:
    """The file of a bundled study."""
    if name not in names():
        raise unknown("study", name, names())
    return _FOLDER / f"{name}.yaml"


def find(study: str) -> Path:
    """The file of a study: a bundled name, or a path. A bundled name comes first."""
    file = Path(study)
    like_a_name = file.name == study and not file.suffix and not file.exists()
    if study in names() or like_a_name:
        return path(study)
    if file.is_file():
        return file
    fix = f"give a YAML file or one of: {', '.join(names())}"
    if file.is_dir():
        if (file / "study.yaml").exists():
            fix = f"resume it with {how_to_resume(study)}"
        raise InputError("study", "is a folder", study, fix)
    raise InputError("study", "is not a file", study, fix)


def load(study: str) -> Tree:
    """The tree of a study: a bundled name, one of its settings as NAME/SETTING, or a path.

    A bundled name comes before a file or folder of that name; a file comes before NAME/SETTING.
    """
    name, _, setting = study.partition("/")
    if setting and name in names() and not Path(study).is_file():
        return load_yaml(path(name)).narrowed(setting)
    return load_yaml(find(study))
