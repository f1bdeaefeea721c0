"""`fedskip federation`: the same study over Flower, on this machine or on many."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.input.errors import InputError, require

app = typer.Typer(no_args_is_help=True, help="Real clients that keep their data: docs/federation.md.")

Folder = Annotated[Path, typer.Argument(help="The folder of a federation.", show_default=False)]


def _flower() -> None:
    """Refuse to go on without Flower."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise InputError(
            "Flower", f"is not installed ({error})", fix="install it: pip install 'fedskip[flower]'"
        ) from None


def _round(line: dict[str, Any]) -> None:
    """What is said of a round."""
    parts = [
        f"round {line['round']}/{line['rounds']}",
        f"{line['seconds']:.1f} s",
        f"{len(line['clients'])} clients",
    ]
    if "test_accuracy" in line:
        parts.append(f"test {line['test_accuracy']:.4f}, worst client {line['x_worst_client']:.4f}")
    typer.echo("  ".join(parts))
    for name, why in line["left_out"].items():
        typer.secho(f"  {name} was left out: {why}", fg="yellow")


def _closing(folder: Path) -> None:
    from fedskip.cli.screen import close
    from fedskip.report.results import Results

    close(Results.read(folder / "run"))


@app.command()
def local(
    study: Annotated[str | None, typer.Argument(help="A study of one method; SYNTHETIC without.")] = None,
    clients: Annotated[int, typer.Option("-n", "--clients", metavar="N", help="How many.")] = 3,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    methods: Annotated[str | None, typer.Option(help="One, such as 'scaffold(period=3)'.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="By default runs/federation-N.", show_default=False)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")] = False,
) -> None:
    """Try a federation on this machine: a server and N clients as processes, with TLS and registered keys.

    A folder that was begun goes on from its last round.
    """
    _flower()
    from fedskip.cli.folders import folder as named
    from fedskip.flower import agreement
    from fedskip.flower import local as here
    from fedskip.records.provenance import next_folder
    from fedskip.spec import build

    given = {"methods": methods, "rounds": rounds}
    folder = named(out)
    if folder is not None and (folder / agreement.FILE).exists():
        others = {"STUDY": study, "--rounds": rounds, "--methods": methods, "--set": assignments}
        for option, value in others.items():
            fix = "leave it out to go on, or choose another --out"
            require(option, not value, f"is not for {folder}, which was begun", value, fix)
        typer.echo(f"going on in {folder}")
    else:
        require("-n", 1 <= clients <= 64, "must be 1 to 64 on one machine", clients)
        tree = _study(study, clients, given, assignments or [])
        folder = folder or next_folder("federation")
        here.write_local(folder, clients, build(tree))
        typer.echo(f"{folder}: certificates, keys and a share of the data for each of {clients} clients")
    with _resumable(folder, "local --out"):
        here.play(folder, _round, typer.echo, insecure=insecure)
    _closing(folder)


def _study(study: str | None, clients: int, given: dict[str, Any], assignments: list[str]) -> Any:
    from fedskip.cli.chosen import chosen
    from fedskip.flower.local import study_for
    from fedskip.spec import Tree, assigned

    keys = {key: value for key, value in given.items() if value is not None}
    over = assigned(assignments).over(Tree(keys, {key: f"--{key}" for key in keys}))
    return over.over(study_for(clients)) if study is None else chosen(study, over)


@contextmanager
def _resumable(folder: Path, command: str) -> Iterator[None]:
    """Tells a user whose federation stops how to go on."""
    from fedskip.flower.superlink import Failed

    again = f"go on with: fedskip federation {command} {folder}"
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(f"Stopped, all processes have ended; {again}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    except Failed as error:
        typer.secho(f"error: {error}. All processes have ended; {again}", fg="red", err=True)
        raise typer.Exit(1) from None


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    clients: Annotated[str, typer.Option(help="Their names: site-a,site-b,site-c.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients reach the server.")],
    study: Annotated[
        str | None, typer.Option(help="A study of one method; without, one to fill in.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name of it; may be repeated."),
    ] = None,
) -> None:
    """Make the folder of a new federation: certificates, keys, a Flower app, and what goes to each site."""
    _flower()
    from fedskip.flower.agreement import Agreement
    from fedskip.flower.folder import STUDY, write_folder
    from fedskip.input.plain import read_text
    from fedskip.spec import bundled

    names = [name.strip() for name in clients.split(",") if name.strip()]
    parties = Agreement(clients=tuple(names), server=server)
    text = STUDY.format(cohort=len(names)) if study is None else read_text(bundled.find(study))
    write_folder(folder, parties, text, host or [])
    typer.echo(f"{folder}: read README.md there; study.yaml says what is trained")


@app.command()
def server(
    folder: Folder,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="On which to listen.")] = "0.0.0.0",
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")] = False,
) -> None:
    """Serve a federation to its end; started again, it goes on from its last round."""
    _flower()
    from fedskip.flower.agreement import FILE, Agreement
    from fedskip.flower.check import server_checks
    from fedskip.flower.processes import Processes
    from fedskip.flower.superlink import SuperLink

    if (folder / "run" / "summary.csv").exists():
        typer.echo(f"{folder} is finished")
        _closing(folder)
        return
    _refuse(server_checks(folder, insecure=insecure, begins=True))
    parties = Agreement.read(folder / FILE)
    with _resumable(folder, "server"), Processes() as processes:
        typer.echo("starting the SuperLink ...")
        link = SuperLink(folder, parties, processes, host, insecure=insecure)
        link.register()
        link.run()
        typer.echo(f"listening on port {link.port}; waiting for {', '.join(parties.clients)}")
        link.watch(_round)
    _closing(folder)


Where = Annotated[Path, typer.Argument(metavar="DIR", help="A folder with a client.yaml.")]


@app.command()
def client(
    folder: Where = Path("."),
    name: Annotated[str | None, typer.Option(help="Of this client.")] = None,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    data: Annotated[str | None, typer.Option(help="A file, or the name of a data set.")] = None,
    loader: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="Makes a Dataset.")] = None,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="The federation's ca.crt.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="This client's private key.")] = None,
    state_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Where it remembers.")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Of the node, on this machine.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most that private visits may cost.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and without a key.")] = False,
) -> None:
    """Take part in a federation with this machine's data, until stopped. Options win over client.yaml."""
    _flower()
    from fedskip.flower.check import client_checks
    from fedskip.flower.folder import ClientFile
    from fedskip.flower.supernode import keep_up

    given = {
        "name": name, "server": server, "data": data, "loader": loader, "ca": ca, "key": key,
        "state_dir": state_dir, "device": device, "port": port, "epsilon": epsilon,
    }  # fmt: skip
    file = ClientFile.read(folder, **{key: value for key, value in given.items() if value is not None})
    _refuse(client_checks(file, insecure=insecure, reach=False))
    try:
        log = Path(file.state_dir) / "node.log"
        typer.echo(f"{file.name} takes part at {file.server}; its log is {log}")
        keep_up(file, log, typer.echo, insecure=insecure)
    except KeyboardInterrupt:
        typer.secho("Stopped; all processes have ended.", fg="yellow", err=True)
        raise typer.Exit(130) from None


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a federation or a client.")] = Path("."),
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")] = False,
) -> None:
    """Look whether a server or a client can start: files, certificates, keys, versions, data, network."""
    _flower()
    from fedskip.flower.agreement import FILE
    from fedskip.flower.check import client_checks, server_checks
    from fedskip.flower.folder import CLIENT, ClientFile

    if (folder / FILE).exists():
        checks = server_checks(folder, insecure=insecure)
    elif (folder / CLIENT).exists():
        checks = client_checks(ClientFile.read(folder), insecure=insecure)
    else:
        fix = "make one with `fedskip federation init`"
        raise InputError("DIR", f"holds neither {FILE} nor {CLIENT}", str(folder), fix)
    failed = []
    for what, look in checks:
        try:
            typer.echo(f"ok    {what}: {look()}")
        except InputError as error:
            failed.append(what)
            typer.secho(f"fails {what}: {error}", fg="red")
    if failed:
        raise InputError("DIR", f"fails {len(failed)} of these checks: {', '.join(failed)}", str(folder))


def _refuse(checks: Iterable[tuple[str, Any]]) -> None:
    """Refuse to start where a check fails."""
    for _, look in checks:
        look()
