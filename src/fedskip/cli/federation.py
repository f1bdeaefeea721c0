"""`fedskip federation`: the same study over Flower, on this machine or on many."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.errors import InputError, require

app = typer.Typer(
    no_args_is_help=True, help="Real clients that keep their data: docs/federation.md."
)

Folder = Annotated[Path, typer.Argument(help="The folder of a federation.", show_default=False)]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")]


@app.command()
def local(
    study: Annotated[
        str | None, typer.Argument(help="A study of one method; SYNTHETIC without.")
    ] = None,
    clients: Annotated[int, typer.Option("-n", "--clients", metavar="N", help="How many.")] = 3,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    methods: Annotated[str | None, typer.Option(help="One, such as 'scaffold(period=3)'.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="By default runs/federation-N.", show_default=False)
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Try a federation on this machine: a server and N clients as processes, with TLS and registered keys.

    A folder that was begun goes on from its last round.
    """
    _require_flower()
    from fedskip.cli.folders import folder as named
    from fedskip.cli.requested_study import requested_study
    from fedskip.config import Places, Tree, assigned, build
    from fedskip.flower.config import FEDERATION
    from fedskip.flower.local import default_study, train, write_local
    from fedskip.records.folder import next_folder

    folder = named(out)
    if folder is not None and (folder / FEDERATION).exists():
        others = {"STUDY": study, "--rounds": rounds, "--methods": methods, "--set": assignments}
        for option, value in others.items():
            fix = "leave it out to go on, or choose another --out"
            require(option, not value, f"is not for {folder}, which was begun", value, fix)
        typer.echo(f"going on in {folder}")
    else:
        require("-n", 1 <= clients <= 64, "must be 1 to 64 on one machine", clients)
        given = {"methods": methods, "rounds": rounds}
        keys = {key: value for key, value in given.items() if value is not None}
        over = assigned(assignments or []).over(
            Tree(keys, Places({key: f"--{key}" for key in keys}))
        )
        tree = over.over(default_study(clients)) if study is None else requested_study(study, over)
        folder = folder or next_folder("federation")
        write_local(folder, clients, build(tree))
        made = f"certificates, keys and a share of the data for each of {clients} clients"
        typer.echo(f"{folder}: {made}")
    with (
        _how_to_go_on(folder, "local --out"),
        closing(train(folder, typer.echo, insecure=insecure)) as rounds_done,
    ):
        for done in rounds_done:
            _show_round(done)
    _show_results(folder)


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)
    ],
    clients: Annotated[str, typer.Option(help="Their names: site-a,site-b,site-c.")],
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients reach the server.")
    ],
    study: Annotated[
        str | None,
        typer.Option(help="A study of one method; without, one to fill in.", show_default=False),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name of it; may be repeated."),
    ] = None,
) -> None:
    """Make the folder of a new federation: certificates, keys, a Flower app, and what goes to each site."""
    _require_flower()
    from fedskip.config import bundled
    from fedskip.config.yaml_text import read_text
    from fedskip.flower.config import FederationConfig
    from fedskip.flower.folder import STUDY, write_folder

    names = [name.strip() for name in clients.split(",") if name.strip()]
    config = FederationConfig(clients=tuple(names), server=server)
    text = STUDY.format(cohort=len(names)) if study is None else read_text(bundled.find(study))
    write_folder(folder, config, text, host or [])
    typer.echo(f"{folder}: read README.md there; study.yaml says what is trained")


@app.command()
def server(
    folder: Folder,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="On which to listen.")] = "0.0.0.0",
    insecure: Insecure = False,
) -> None:
    """Serve a federation to its end; started again, it goes on from its last round."""
    _require_flower()
    from fedskip.flower.check import server_checks
    from fedskip.flower.config import RUN
    from fedskip.flower.processes import Processes
    from fedskip.flower.superlink import SuperLink

    if (folder / RUN / "summary.csv").exists():
        typer.echo(f"{folder} is finished")
        _show_results(folder)
        return
    for _, look in server_checks(folder, insecure=insecure, starts=True):
        look()
    with _how_to_go_on(folder, "server"), Processes() as processes:
        typer.echo("starting the SuperLink ...")
        link = SuperLink(folder, processes, host, insecure=insecure)
        link.register()
        link.run()
        typer.echo(f"listening on port {link.port}; waiting for {', '.join(link.config.clients)}")
        for rounds in link.watch():
            for done in rounds:
                _show_round(done)
    _show_results(folder)


@app.command()
def client(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with a client.yaml.")
    ] = Path("."),
    name: Annotated[str | None, typer.Option(help="Of this client.")] = None,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    data: Annotated[str | None, typer.Option(help="A file, or the name of a data set.")] = None,
    loader: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Makes a Dataset.")
    ] = None,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="The federation's ca.crt.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="This client's private key.")
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="For its memory and logs.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Of the node, on this machine.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The most that private visits may cost.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with this machine's data, until stopped. Options win over client.yaml."""
    _require_flower()
    from fedskip.flower.check import client_checks
    from fedskip.flower.config import ClientConfig
    from fedskip.flower.supernode import keep_running

    given = {
        "name": name, "server": server, "data": data, "loader": loader, "ca": ca, "key": key,
        "state_dir": state_dir, "device": device, "port": port, "epsilon": epsilon,
    }  # fmt: skip
    options = {key: value for key, value in given.items() if value is not None}
    config = ClientConfig.read(folder, **options)
    for _, look in client_checks(config, insecure=insecure, reach=False):
        look()
    log = Path(config.state_dir) / "node.log"
    typer.echo(f"{config.name} takes part at {config.server}; its log is {log}")
    try:
        keep_running(config, log, typer.echo, insecure=insecure)
    except KeyboardInterrupt:
        typer.secho("Stopped; all processes have ended.", fg="yellow", err=True)
        raise typer.Exit(130) from None


@app.command()
def check(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Of a federation or a client.")
    ] = Path("."),
    insecure: Insecure = False,
) -> None:
    """Check whether a server or a client can start: files, certificates, keys, versions, data, network."""
    _require_flower()
    from fedskip.flower.check import client_checks, server_checks
    from fedskip.flower.config import CLIENT, FEDERATION, ClientConfig

    if (folder / FEDERATION).exists():
        checks = server_checks(folder, insecure=insecure)
    elif (folder / CLIENT).exists():
        checks = client_checks(ClientConfig.read(folder), insecure=insecure)
    else:
        fix = "make one with `fedskip federation init`"
        raise InputError("DIR", f"holds neither {FEDERATION} nor {CLIENT}", str(folder), fix)
    failed = []
    for what, look in checks:
        try:
            typer.echo(f"ok    {what}: {look()}")
        except InputError as error:
            failed.append(what)
            typer.secho(f"fails {what}: {error}", fg="red")
    if failed:
        rule = f"fails {len(failed)} of these checks: {', '.join(failed)}"
        raise InputError("DIR", rule, str(folder))


def _require_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        fix = "install it: pip install 'fedskip[flower]'"
        raise InputError("Flower", f"is not installed ({error})", fix=fix) from None


def _show_round(done: dict[str, Any]) -> None:
    parts = [
        f"round {done['round']}/{done['rounds']}",
        f"{done['seconds']:.1f} s",
        f"{len(done['clients'])} clients",
    ]
    if done.get("test_accuracy") is not None:
        parts.append(f"test {done['test_accuracy']:.4f}, worst client {done['x_worst_client']:.4f}")
    typer.echo("  ".join(parts))
    for name, why in done["left_out"].items():
        typer.secho(f"  {name} was left out: {why}", fg="yellow")


def _show_results(folder: Path) -> None:
    from fedskip.cli.screen import close
    from fedskip.flower.config import RUN
    from fedskip.report.results import Results

    close(Results.read(folder / RUN))


@contextmanager
def _how_to_go_on(folder: Path, command: str) -> Iterator[None]:
    """Tells a user whose federation stops how to go on."""
    from fedskip.flower.superlink import RunFailed

    again = f"go on with: fedskip federation {command} {folder}"
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(f"Stopped, all processes have ended; {again}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    except RunFailed as error:
        typer.secho(f"error: {error}. All processes have ended; {again}", fg="red", err=True)
        raise typer.Exit(1) from None
