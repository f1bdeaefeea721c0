"""The house: rooms whose imports point one way, tests that mirror them, functions that fit a screen."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

from terminal import SMALL, call

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedskip"

# From the ground up: a room may import those before it. Top-level modules are rooms of their own.
ROOMS = [
    "version", "errors", "user_code", "files", "parsing", "rng", "kernels", "models", "data", "methods", "engine", "federation", "config",
    "records", "report", "cluster", "contract", "study", "flower", "cli",
]  # fmt: skip
# Modules that import by name, where no reader of the syntax can see what.
DYNAMIC = {
    "",  # what users ask the package for; tests/test_package.py knows it
    "parsing",  # a user's own module, if a study or a command names one
    "methods.grammar",  # every file of its own folder
}


@cache
def modules() -> dict[str, Path]:
    """All modules, without the package's own name; `engine` is its __init__.py.

    `__main__.py` is no room, but the door: nobody imports it.
    """
    found = {}
    for file in sorted({*SOURCE.rglob("*.py")} - {SOURCE / "__main__.py"}):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


@cache
def absent() -> set[str]:
    """Modules that cannot be imported here: one needs Triton, some Ray, a whole room needs Flower."""
    installed = importlib.util.find_spec("flwr") is not None
    flower = [name for name in modules() if room(name) == "flower" and not installed]
    ray = (
        []
        if importlib.util.find_spec("ray") is not None
        else ["cluster.actors", "cluster.scheduler", "study.device_worker", "study.ray_workers"]
    )
    return {"kernels.convolution", *ray, *flower}


def imports(name: str, *, at_once: bool = False) -> set[str]:
    """The modules that a module imports, wherever in it; `at_once`: only those at its top."""
    found = set()
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively"
            base = node.module or ""
            if base.partition(".")[0] == "fedskip":
                base = base.removeprefix("fedskip").removeprefix(".")
                for alias in node.names:  # a module of that package, or a name in it
                    inner = f"{base}.{alias.name}".strip(".")
                    found.add(inner if inner in modules() else base)
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("fedskip.")
                for alias in node.names
                if "fedskip" in alias.name
            }
    return found


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_is_in_a_room() -> None:
    assert {room(module) for module in modules() if module} == set(ROOMS)


@pytest.mark.parametrize("module", [module for module in modules() if module])
def test_imports_point_one_way(module: str) -> None:
    """Also those inside of functions: a lazy import may save time, but hides no cycle."""
    above = [other for other in imports(module) if other not in modules() or not other]
    assert not above, "the package's own __init__ is for users"
    for other in imports(module):
        assert ROOMS.index(room(other)) <= ROOMS.index(room(module)), f"{module} imports {other}"


def test_no_module_imports_itself_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in imports(module, at_once=True):
                visit(other, (*path, module))
            done.add(module)

    for module in modules():
        visit(module, ())


def test_what_is_imported_by_name_is_known() -> None:
    """By `importlib` and its like, which the tests above cannot see."""
    dynamic = {"importlib", "pkgutil", "runpy", "imp", "__import__", "exec", "eval"}
    found = set()
    for name, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            used = {node.id} if isinstance(node, ast.Name) else set[str]()
            if isinstance(node, ast.Import):
                used = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                used = {(node.module or "").partition(".")[0]}
            if used & dynamic:
                found.add(name)
    assert found == DYNAMIC


def test_a_room_needs_only_what_is_below_it() -> None:
    """Whatever the way of importing: from the ground up, no room brings along one that comes later."""
    rooms = [[module for module in modules() if room(module) == name] for name in ROOMS]
    code = f"""
import importlib, sys, types
package = types.ModuleType("fedskip")  # without its own __init__, which imports everything
package.__path__ = [{str(SOURCE)!r}]
sys.modules["fedskip"] = package
for number, modules in enumerate({rooms!r}):
    for module in modules:
        if module not in {absent()!r}:
            importlib.import_module(f"fedskip.{{module}}")
    later = tuple(f"fedskip.{{room}}." for room in {ROOMS!r}[number + 1:])
    early = [name for name in sys.modules if f"{{name}}.".startswith(later)]
    assert not early, (modules, early)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_methods_do_not_know_the_engine() -> None:
    """Importing them by themselves is quick, and gives the methods."""
    reached, todo = set[str](), {module for module in modules() if room(module) == "methods"}
    while todo:
        reached |= todo
        todo = {other for module in todo for other in imports(module)}
        todo |= {
            room(module) for module in todo
        }  # a room's own __init__ is imported with what is in it
        todo -= reached
    assert {room(module) for module in reached} <= {
        "methods",
        "models",
        "kernels",
        "parsing",
        "user_code",
        "errors",
        "rng",
        "files",
    }


def test_a_package_exports_no_name_of_a_module_of_its_own() -> None:
    """`import fedskip.data.partitions` gives a module, whatever the package offers."""
    for module in modules().keys() - {""} - absent():
        parent, _, name = f"fedskip.{module}".rpartition(".")
        imported = importlib.import_module(f"fedskip.{module}")
        assert getattr(importlib.import_module(parent), name) is imported, module


def test_tests_mirror_the_rooms() -> None:
    """The test of a thing is found by its name; that of a whole room has the room's. Faults hit the whole.

    `reproduction` is no part of the package.
    """
    for file in (ROOT / "tests").rglob("*/test_*.py"):
        parts = file.relative_to(ROOT / "tests").with_suffix("").parts
        if parts[0] in ("faults", "reproduction"):
            continue
        name = ".".join([*parts[:-1], parts[-1].removeprefix("test_")])
        assert name in modules() or parts[-2] == parts[-1].removeprefix("test_"), file


def test_no_test_imports_from_another() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(?:from|import) test_", text, re.MULTILINE), file


@pytest.mark.parametrize("module", modules())
def test_modules_say_what_they_are_for(module: str) -> None:
    assert ast.get_docstring(ast.parse(modules()[module].read_text(encoding="utf-8")))


# --- docs/architecture.md ------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WAY = re.findall(r"^\d+\. `([\w/]+)\.py` `([\w.]+)`: ", PAGE, re.MULTILINE)


def picture(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_picture_has_every_room_and_allows_every_import() -> None:
    """A room imports rooms below it, or to its right on the same shelf."""
    boxes = re.findall(
        r'<rect class="b" x="(\d+)" y="(\d+)"[^>]*/>\s*<text class="name"[^>]*>(\w+)',
        picture("rooms.svg"),
    )
    at = {name: (int(y), int(x)) for x, y, name in boxes}
    assert at.keys() == set(ROOMS) - {"version"}
    for module in modules().keys() - {""}:
        for other in imports(module):
            here, there = room(module), room(other)
            assert here == there or "version" in (here, there) or at[here] < at[there], (
                module,
                other,
            )


def test_the_table_has_every_room_and_what_it_imports() -> None:
    table = PAGE[PAGE.index("| folder |") : PAGE.index("## The loop")]
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [name for name in ROOMS if (SOURCE / name).is_dir()]
    for name, known in rows:
        found = {
            room(other) for module in modules() if room(module) == name for other in imports(module)
        }
        expected = found - {name, "version", "rng", "files", "errors", "parsing", "user_code"}
        assert set(re.findall(r"\w+", known)) == expected, name


def test_every_arrow_of_the_loop_is_a_function_that_makes_what_it_carries() -> None:
    text = picture("loop.svg")
    homes = dict(
        re.findall(r'class="name"[^>]*>(\w+)</text>\s*<text class="file"[^>]*>([\w/]+)\.py', text)
    )
    arrows = re.findall(
        r'class="call[^>]*>(\w+)\.(\w+)</text>\s*<text class="file[^>]*>(\w+)', text
    )
    assert len(arrows) == 6
    for owner, function, carried in arrows:
        module = importlib.import_module(f"fedskip.{homes[owner].replace('/', '.')}")
        source = inspect.getsource(getattr(getattr(module, owner), function))
        assert re.search(rf"\) -> [^\n]*\b{carried}\b", source), (
            f"{owner}.{function} gives no {carried}"
        )


def test_the_loop_on_the_page_is_the_loop() -> None:
    [block] = re.findall(r"```python\n(with engine.*?)```", PAGE, re.DOTALL)
    lines = {line.strip() for line in block.splitlines()}
    loop = modules()["federation.training"].read_text(encoding="utf-8")
    assert lines == {line.strip() for line in loop[loop.index("with engine.open") :].splitlines()}


def test_files_on_the_page_exist() -> None:
    pages = PAGE + (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:src|tests)/[\w/.]+)`", pages))
    assert len(files) > 20
    for file in files:
        assert (ROOT / file).exists(), file
    for name, file in re.findall(r"`(\w+)` in `(src/[\w/]+\.py)`", pages):
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8")), (
            f"{name} in {file}"
        )


def test_a_visit_goes_the_way_that_the_page_says(tmp_path: Path) -> None:
    """The functions are called in this order, as others are before, between and after them."""
    assert 15 <= len(WAY) <= 20
    called: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)):
            called.append(
                (file.removeprefix(f"{SOURCE}/").removesuffix(".py"), frame.f_code.co_qualname)
            )

    sys.setprofile(note)
    try:
        options = [
            "--methods",
            "fedavg",
            "--engine",
            "stacked",
            "--set",
            "processes=1",
            "--set",
            "settings=",
        ]
        code, *_ = call("run", *SMALL, *options, "--out", tmp_path / "out")
    finally:
        sys.setprofile(None)
    assert code == 0
    calls = iter(called)
    for hop in WAY:
        assert hop in calls, f"{hop} is not called after those before it"
