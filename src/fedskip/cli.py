"""The command line: `fedskip run`, `resume`, `list`, `show`, `export`, `bench` and `data`."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from typer.core import TyperGroup

import fedskip
from fedskip import config, studies
from fedskip.config import Setting, Tree
from fedskip.data import LOADERS
from fedskip.data import commands as data_commands
from fedskip.data.partition import KINDS
from fedskip.errors import InputError
from fedskip.files import write_bytes
from fedskip.methods import registry
from fedskip.models import MODELS
from fedskip.processes import ProcessEnded
from fedskip.report.live import Live
from fedskip.report.table import closing
from fedskip.study import Interrupted, Results, Study
from fedskip.weights import load, read_state

WIDTH = 120  # of tables where there is no terminal to fit
QUICKSTART = "quickstart"


class Group(TyperGroup):
    """Commands whose expected errors end in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (InputError, OSError) as error:
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="FedSkip, its rivals, and the study that compares them.",
)  # fmt: skip
app.add_typer(data_commands.app, name="data")


def main() -> None:
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskip {fedskip.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


# --- studies -------------------------------------------------------------------------------------------


@app.command()
def run(
    study: Annotated[str | None, typer.Argument(help="A bundled study or a YAML file.")] = None,
    methods: Annotated[str | None, typer.Option(help="Such as 'fedavg, fedskip(period=5)'.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many: 0, 1, ... N-1.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="auto|loop|stacked")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1, cohort=5, ..."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="By default runs/STUDY-N.", show_default=False)] = None,
) -> None:
    """Run a study: quickstart, or another one, or the defaults of a data set (--set data.name=...)."""
    keys = {"methods": methods, "rounds": rounds, "seeds": seeds, "engine": engine, "device": device}
    given = {key: value for key, value in keys.items() if value is not None}
    for assignment in assignments or []:
        if (key := assignment.split("=")[0].strip()) in given:
            raise InputError(
                f"--{key}", "must not be given twice", given[key], f"leave out --set {assignment}"
            )
    over = config.apply(Tree(given, {key: f"--{key}" for key in given}), assignments or [])
    new = Study(out, spec=config.build(chosen(study, over)))
    with resumable(new), _live(new) as progress:
        results = new.run(progress)
    _close(results, new)


@app.command()
def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a study.", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Go on to more rounds than planned.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where a library or the machine has changed.")
    ] = False,
) -> None:
    """Go on with a study from its last checkpoint."""
    study = Study.load(out)
    if rounds is None and study.is_finished():
        typer.echo(f"{out} is finished; extend it with --rounds N")
        results = study.results()
    else:
        with resumable(study), _live(study) as progress:
            results = study.resume(progress, rounds=rounds, anyway=anyway)
    _close(results, study)


def chosen(study: str | None, over: Tree) -> Tree:
    """The study that a user means.

    The quickstart is made for its data set: with another one, and no study named, what the data set has by
    default is the study.
    """
    tree = config.load_yaml(studies.find(study or QUICKSTART))
    data = over.values.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    if study is None and name not in (None, tree.values["data"]["name"]):
        return over.over(Tree({"name": Path(str(name)).stem}))
    return overridden(tree, over)


def overridden(tree: Tree, over: Tree) -> Tree:
    """A study with the command line laid over it.

    It beats what single settings say, too: otherwise a key that they all set for themselves would be lost
    without a word. Only references keep what is theirs.
    """
    known = {field.name for field in dataclasses.fields(Setting)} - {"name"}
    own = Tree({key: value for key, value in over.values.items() if key in known})
    entries, places = tree.values.get("settings"), dict(tree.places)
    if isinstance(entries, list):
        entries = list(entries)
        for index, entry in enumerate(entries):
            if isinstance(entry, Mapping) and not entry.get("reference"):
                entries[index] = own.over(Tree(entry)).values
                places |= {f"settings.{index}.{path}": place for path, place in over.places.items()}
    return over.over(Tree({**tree.values, "settings": entries}, places))


@contextmanager
def resumable(study: Study) -> Iterator[None]:
    """Whoever stops a study inside is told how to go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        out = study.out
        if not (out / "study.yaml").exists():
            message = "Stopped before the study began; nothing was written."
        elif isinstance(stop, Interrupted):
            message = f"Stopped at a checkpoint. Go on with: fedskip resume {out}"
        elif any((out / "checkpoints").glob("*")):
            message = f"Stopped at once; the last checkpoint is kept. Go on with: fedskip resume {out}"
        else:
            message = f"Stopped before the first checkpoint. Begin again with: fedskip resume {out}"
        typer.secho(message, fg="yellow", err=True)
        raise typer.Exit(130) from None
    except ProcessEnded as error:
        message = f"error: {error}; was there enough memory? Go on with: fedskip resume {study.out}"
        typer.secho(message, fg="red", err=True)
        raise typer.Exit(1) from None


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH)


def _live(study: Study) -> Live:
    return Live(_console(), lambda: f"{study.spec.name} in {study.out}", len(study.spec.settings))


def _close(results: Results, study: Study) -> None:
    console = _console()
    console.print(closing(results, study.spec))
    console.print(f"\n{results.out}", soft_wrap=True)


# --- what there is -------------------------------------------------------------------------------------


@app.command("list")
def list_() -> None:
    """The studies, methods, models, data sets and partitions that come with the package."""
    methods = {_usage(name, method): _first_line(method) for name, method in registry().items()}
    sections = {
        "studies (fedskip show STUDY)": {name: _summary(studies.path(name)) for name in studies.names()},
        "methods (all skip as FedSkip does: scaffold(period=5))": methods
        | {"fedskip(period=...)": "FedAvg that merges only every `period` rounds; models travel between."},
        "models (model.name)": {name: _first_line(make) for name, make in MODELS.items()},
        "data sets (data.name; fedskip data list)": {", ".join([*LOADERS, "PATH.npz"]): ""},
        "partitions (partition.kind)": {name: _first_line(deal) for name, deal in KINDS.items()},
    }
    for title, items in sections.items():
        typer.secho(title, bold=True)
        width = max(map(len, items))
        for name, words in items.items():
            typer.echo(f"  {name:<{width}}  {words}".rstrip())


@app.command()
def show(study: Annotated[str, typer.Argument(help="A bundled study or a YAML file.")]) -> None:
    """Print a study as YAML, to read or to change: fedskip show quickstart > mine.yaml."""
    typer.echo(studies.find(study).read_text(encoding="utf-8"), nl=False)


def _usage(name: str, method: type[Any]) -> str:
    """A method as users write it, with its defaults: fedprox(mu=0.01)."""
    fields = [f"{f.name}={f.default}" for f in dataclasses.fields(method) if f.name != "period"]
    return f"{name}({', '.join(fields)})" if fields else name


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _summary(file: Path) -> str:
    """The comment that a study file opens with."""
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


# --- models and speed ----------------------------------------------------------------------------------


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A trained model: OUT/models/RUN.best.safetensors.")],
    out: Annotated[Path, typer.Argument(help="The file to write, such as model.pt.")],
) -> None:
    """Write a trained model as a plain torch state_dict."""
    if out.is_dir() or out.suffix == ".safetensors":
        raise InputError("OUT", "must be a file for torch, such as model.pt", str(out))
    state, about = read_state(model)
    if about.get("model"):
        state = load(model).state_dict()  # with BatchNorm's counters, which a study leaves out
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(out, buffer.getvalue())
    typer.echo(f"{out}: {len(state)} tensors, {sum(t.numel() for t in state.values()):,} numbers")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="synthetic, cnn, cnn-femnist, lstm, resnet50 or pfl-cifar10.")],
    rows: Annotated[int, typer.Option(metavar="N", help="Models that train side by side.")] = 100,
    compile: Annotated[bool, typer.Option("--compile/--no-compile")] = True,
    device: Annotated[str, typer.Option(metavar="cpu|cuda|cuda:N")] = "cpu",
    precision: Annotated[str | None, typer.Option(metavar="fp32|tf32|bf16|fp64")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic/--no-deterministic")] = True,
    streams: Annotated[int | None, typer.Option(metavar="N", help="0: all rows in one batch.")] = None,
    processes: Annotated[int | None, typer.Option(metavar="N", help="Of the stacked engine.")] = None,
) -> None:
    """Client-steps per second of the engines, against a plain PyTorch loop; the last line is JSON."""
    from fedskip.bench import main as measure

    measure(
        name, rows=rows, compile=compile, device=device,
        precision=precision, deterministic=deterministic, streams=streams, processes=processes,
    )  # fmt: skip
