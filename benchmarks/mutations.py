"""Do the tests notice small mistakes? Changes a source file, runs its tests, lists what they miss.

    python benchmarks/mutations.py                                       # 12 mutations of the core
    python benchmarks/mutations.py --sample 40 --seed 7 src/fedskip/records

A mutation turns a comparison (< becomes <=), an operator (+ becomes -), a number (n becomes n + 1),
a truth value, or `and` and `or`. `src/fedskip/ROOM/NAME.py` is tested by `tests/ROOM/test_NAME.py`,
or by all of `tests/ROOM`. The source is changed in a copy. A mutation that survives is a test that
is missing, or one that changes nothing.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ["methods", "federation", "engine", "contract", "rng.py"]
SECONDS = 600  # after which tests count as having noticed
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip


def mutations(tree: ast.Module) -> Iterator[str]:
    """Change the tree in one place at a time; gives the line, and what it was and is."""
    for node in _code(tree):
        before = f"{getattr(node, 'lineno', 0)}  {ast.unparse(node)}"
        match node:
            case ast.Compare(ops=operators) if type(operators[0]) in SWAPS:
                old = operators[0]
                operators[0] = SWAPS[type(old)]()  # type: ignore[call-overload]
                yield f"{before}  ->  {ast.unparse(node)}"
                operators[0] = old
            case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
                node.op = SWAPS[type(op)]()  # type: ignore[assignment]
                yield f"{before}  ->  {ast.unparse(node)}"
                node.op = op
            case ast.Constant(value=bool() | int() | float() as value):
                node.value = not value if isinstance(value, bool) else value + 1
                yield f"{before}  ->  {ast.unparse(node)}"
                node.value = value


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """What is computed: annotations and types are not."""
    for name, inner in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_params"):
            for child in inner if isinstance(inner, list) else [inner]:
                if isinstance(child, ast.AST):
                    yield child
                    yield from _code(child)


def tests_of(path: Path) -> Path | None:
    """The tests of a source file."""
    room = ROOT / "tests" / path.relative_to(ROOT / "src/fedskip").parent
    file = room / f"test_{path.stem}.py"
    return file if file.exists() else room if room != ROOT / "tests" and room.exists() else None


def passes(tests: Path, source: Path) -> bool:
    """Whether tests pass with the package in the folder `source`."""
    command = [sys.executable, "-m", "pytest", str(tests), "-x", "-q", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; without, the core")
    parser.add_argument("--sample", type=int, default=12, help="how many mutations (12)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    chosen = parser.parse_args()
    roots = [path.resolve() for path in chosen.paths]
    roots = roots or [ROOT / "src/fedskip" / name for name in CORE]
    files = [
        file
        for root in roots
        for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))
    ]
    trees = {file: ast.parse(file.read_text()) for file in files if tests_of(file)}
    places = [(file, i) for file in trees for i, _ in enumerate(mutations(trees[file]))]
    sample = random.Random(chosen.seed).sample(places, min(chosen.sample, len(places)))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        source = Path(folder)
        shutil.copytree(ROOT / "src", source, dirs_exist_ok=True)
        copies = {file: source / file.relative_to(ROOT / "src") for file in trees}
        for file in trees:
            copies[file].write_text(ast.unparse(trees[file]))
        sound = cache(lambda tests: passes(tests, source))  # before anything is changed
        for file, number in sorted(sample):
            tests = tests_of(file)
            assert tests is not None
            if not sound(tests):
                sys.exit(f"{tests.relative_to(ROOT)} fails without any mutation")
            for i, what in enumerate(mutations(trees[file])):
                if i == number:
                    copies[file].write_text(ast.unparse(trees[file]))
                    survived = passes(tests, source)
                    survivors += survived
                    word = "SURVIVED" if survived else "caught"
                    print(f"{word:8}  {file.relative_to(ROOT)}:{what}", flush=True)
            copies[file].write_text(ast.unparse(trees[file]))
    print(f"{survivors} of {len(sample)} mutations survived")


if __name__ == "__main__":
    main()
