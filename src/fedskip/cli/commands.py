"""The command line: how it starts and ends, and the commands `list`, `show` and `export`."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from fedskip.cli import data, federation, output, studies
from fedskip.cli.report import report, watch
from fedskip.cli.system_errors import explain, sentences
from fedskip.errors import InputError, shorten
from fedskip.user_code import no_exit
from fedskip.version import __version__

UsageError: Any = typer.BadParameter.__bases__[0]  # of click, which newer typers contain


class Commands(TyperGroup):
    """Commands that print an expected error as one line, without a traceback."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        code = 0
        try:
            code = super().main(*args, **{**options, "standalone_mode": False}) or 0
            sys.stdout.flush()
        except Exception as error:
            code = code or report_error(error)
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        with no_exit():
            return super().invoke(ctx)


def report_error(error: Exception) -> int:
    """Print an expected error, and give the exit code. Raises any other."""
    if isinstance(error, BrokenPipeError):  # `| head` has seen enough
        return 1
    if isinstance(error, typer.Abort):
        return 130
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return 2
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx else "fedskip"
        message = f"{' '.join(error.format_message().split())} See: {command} --help"
    elif isinstance(error, InputError):
        message = error.message(flags=True)
    elif reason := explain(error):
        message = f"{sentences(*reason)}."
    else:
        raise error
    typer.secho(f"error: {shorten(message, 1000)}", fg="red", err=True)
    return 2


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="FedSkip, its baselines, and the studies that compare them.",
)  # fmt: skip
for command in (studies.run, studies.resume, studies.extend, report, watch):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")


def main() -> None:
    output.prepare_streams()
    try:
        app()
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # Python would fail again as it ends
            output.discard(1)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command("list")
def list_() -> None:
    """List the studies, methods, models, data sets and partitions of the package."""
    from fedskip.config import bundled
    from fedskip.data.catalogue import CATALOGUE, FORMS
    from fedskip.data.partitions import KINDS
    from fedskip.methods import registry
    from fedskip.models import MODELS

    methods = {_call(name, method): _first_line(method) for name, method in registry().items()}
    methods["fedskip(period=...)"] = (
        "FedAvg that merges only every `period` rounds; models travel between."
    )
    sections = {
        "studies (fedskip run STUDY; fedskip show STUDY lists its settings)": {
            name: bundled.words(name) for name in bundled.names()
        },
        "methods (all can skip as FedSkip does: scaffold(period=5))": methods,
        "models (model.name)": {name: _first_line(make) for name, make in MODELS.items()},
        "data sets (data.name; fedskip data list)": {", ".join(CATALOGUE): ""},
        "your own data (data.name, or data= in Python)": FORMS,
        "partitions (partition.kind)": {name: _first_line(kind) for name, kind in KINDS.items()},
    }
    for title, items in sections.items():
        typer.secho(title, bold=True)
        width = max(map(len, items))
        for name, words in items.items():
            typer.echo(f"  {name:<{width}}  {words}".rstrip())


@app.command()
def show(
    study: Annotated[str, Argument(help="A bundled study, STUDY/SETTING or a file.")],
) -> None:
    """Print a study as YAML, to read or to edit: fedskip show quickstart > mine.yaml."""
    from fedskip.cli.requested_study import refuse_unknown
    from fedskip.config import build, bundled, dump
    from fedskip.config.yaml_text import read_text

    refuse_unknown(study)
    if study.partition("/")[0] in bundled.names() and "/" in study:
        text = dump(build(bundled.load(study)))
    else:
        text = read_text(bundled.find(study))
    # a file gets every character, whatever the encoding of the terminal
    typer.echo(text if sys.stdout.isatty() else text.encode(), nl=False)


def _call(name: str, method: type[Any]) -> str:
    """A method as it is written in a study, with its defaults: fedprox(mu=0.01)."""
    fields = [f"{f.name}={f.default}" for f in dataclasses.fields(method) if f.name != "period"]
    return f"{name}({', '.join(fields)})" if fields else name


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


@app.command()
def export(
    model: Annotated[Path, Argument(help="A trained model: OUT/models/RUN.best.safetensors.")],
    out: Annotated[Path, Argument(help="The file to write: model.pt, .safetensors, .ts or .onnx.")],
    module: Annotated[
        str | None, Option(metavar="MODULE:CLASS", help="What builds it, for a custom model.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a trained model as a state_dict (.pt, .safetensors), TorchScript (.ts) or ONNX."""
    from fedskip.models.export import export
    from fedskip.models.weights import read_state

    export(model, out, module=module, force=force)
    state, _ = read_state(model)
    typer.echo(f"{out}: {len(state)} tensors, {sum(t.numel() for t in state.values()):,} numbers")
