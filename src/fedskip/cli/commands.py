"""The command line: how it starts and ends, and the commands list, show, export and bench."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedskip.cli import data, federation, output, studies
from fedskip.cli.report import report, watch
from fedskip.cli.system_errors import explain, sentences
from fedskip.errors import InputError, shorten
from fedskip.parsing.yaml_text import read_text
from fedskip.version import __version__


class Commands(TyperGroup):
    """Commands that print an expected error as one line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `| head` has seen enough
            output.discard()
            raise typer.Exit(1) from None
        except (InputError, OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, InputError):
                message = error.message(flags=True)
            elif reason := explain(error):
                message = shorten(f"{sentences(*reason)}.", 500)
            else:
                raise
            typer.secho(f"error: {message}", fg="red", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="FedSkip, its baselines, and the studies that compare them.",
)  # fmt: skip
app.command()(studies.run)
app.command()(studies.resume)
app.command()(studies.extend)
app.command()(report)
app.command()(watch)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    output.prepare()
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        code = usage_error(error)
    except typer.Abort:
        code = 130
    except OSError as error:  # --version and --help print before a command starts
        code = output.failed(error)
    sys.exit(output.flush(code if isinstance(code, int) else 0))


UsageError: Any = typer.BadParameter.__bases__[0]  # of click, which newer typers contain


def usage_error(error: Any) -> int:
    """Say in one line what is wrong with the options, and give the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        command = error.ctx.command_path if error.ctx else "fedskip"
        message = f"error: {' '.join(error.format_message().split())} See: {command} --help"
        typer.secho(shorten(message, 500), fg="red", err=True)
    return int(error.exit_code)


@app.command("list")
def list_() -> None:
    """List the studies, methods, models, data sets and partitions of the package."""
    from fedskip.config import bundled
    from fedskip.data import CATALOGUE
    from fedskip.data.from_files import FORMS
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
    study: Annotated[str, typer.Argument(help="A bundled study, STUDY/SETTING or a file.")],
) -> None:
    """Print a study as YAML, to read or to edit: fedskip show quickstart > mine.yaml."""
    from fedskip.cli.requested_study import refuse_unknown
    from fedskip.config import build, bundled, dump

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
    model: Annotated[
        Path, typer.Argument(help="A trained model: OUT/models/RUN.best.safetensors.")
    ],
    out: Annotated[
        Path, typer.Argument(help="The file to write: model.pt, .safetensors, .ts or .onnx.")
    ],
    module: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CLASS", help="What builds it, for a custom model."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a trained model as a state_dict (.pt, .safetensors), TorchScript (.ts) or ONNX (.onnx)."""
    from fedskip.models.export import export
    from fedskip.models.weights import read_state

    export(model, out, module=module, force=force)
    state, _ = read_state(model)
    typer.echo(f"{out}: {len(state)} tensors, {sum(t.numel() for t in state.values()):,} numbers")


@app.command()
def bench(
    name: Annotated[
        str, typer.Argument(help="synthetic, cnn, cnn-femnist, lstm, resnet50 or pfl-cifar10.")
    ],
    rows: Annotated[
        int, typer.Option(metavar="N", help="Models that train at the same time.")
    ] = 100,
    compile: Annotated[bool, typer.Option("--compile/--no-compile")] = True,
    device: Annotated[str, typer.Option(metavar="cpu|cuda|cuda:N")] = "cpu",
    precision: Annotated[str | None, typer.Option(metavar="fp32|tf32|bf16|fp64")] = None,
    deterministic: Annotated[bool, typer.Option("--deterministic/--no-deterministic")] = True,
    streams: Annotated[
        int | None, typer.Option(metavar="N", help="CUDA streams; 0: all models together.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="Processes of the stacked engine.")
    ] = None,
) -> None:
    """Measure the engines' client-steps per second against a plain PyTorch loop. The last line is JSON."""
    from fedskip.bench.measure import measure

    measure(
        name, rows=rows, compile=compile, device=device,
        precision=precision, deterministic=deterministic, streams=streams, processes=processes,
    )  # fmt: skip
