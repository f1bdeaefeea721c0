"""Studies that come with the package, as YAML files beside this one."""

from pathlib import Path

from fedskip.input.errors import InputError, resuming, unknown
from fedskip.spec.tree import Tree, load_yaml

QUICKSTART = "quickstart"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The bundled studies."""
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def papers() -> list[str]:
    """Those that are the paper's: all but the quickstart, tables first."""
    return sorted(set(names()) - {QUICKSTART}, key=lambda name: (not name.startswith("table"), name))


def words(name: str) -> str:
    """What a bundled study is: the comment that its file opens with."""
    first = path(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def path(name: str) -> Path:
    """The file of a bundled study."""
    if name not in names():
        raise unknown("study", name, names())
    return _FOLDER / f"{name}.yaml"


def find(study: str) -> Path:
    """The file that a user means: of a bundled name, whatever else is called so, or a path."""
    file = Path(study)
    like_a_name = file.name == study and not file.suffix and not file.exists()
    if study in names() or like_a_name:
        return path(study)
    if file.is_file():
        return file
    fix = f"give a YAML file or one of: {', '.join(names())}"
    if file.is_dir():
        fix = f"go on with it by {resuming(study)}" if (file / "study.yaml").exists() else fix
        raise InputError("study", "is a folder", study, fix)
    raise InputError("study", "is not a file", study, fix)


def load(study: str) -> Tree:
    """The study that a user means: a bundled name, one of its settings as NAME/SETTING, or a path.

    A bundled name comes before a file or folder called so; NAME/SETTING comes after a file.
    """
    name, _, setting = study.partition("/")
    if setting and name in names() and not Path(study).is_file():
        return load_yaml(path(name)).narrowed(setting)
    return load_yaml(find(study))
