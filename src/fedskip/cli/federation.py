"""`fedskip federation`: the same study over Flower, on this machine or on many."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.errors import InputError, require

HELP = "Real clients that keep their data: docs/federation.md."
app = typer.Typer(no_args_is_help=True, help=HELP)

STUDY = {
    "name": "federation", "data": {"name": "synthetic"}, "partition": {"kind": "dirichlet", "beta": 0.5},
    "local": {"epochs": 1}, "methods": ["fedskip(period=3)"], "rounds": 6, "seeds": [0],
}  # of `local`, if no study is named  # fmt: skip
Trust = Annotated[
    bool, typer.Option("--trust", help="Import and run the code that its study names.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS and without keys.")]


@app.command()
def local(
    study: Annotated[str | None, typer.Argument(help="Of one method; SYNTHETIC without.")] = None,
    clients: Annotated[int, typer.Option("-n", "--clients", metavar="N", help="How many.")] = 3,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    methods: Annotated[str | None, typer.Option(help="One, such as 'scaffold(period=3)'.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="By default runs/federation-N.")] = None,
    trust: Trust = False,
    insecure: Insecure = False,
) -> None:
    """Try a federation on this machine: a server and N clients as processes, with TLS and registered keys.

    A folder that was begun goes on from its last round.
    """
    _require_flower()
    from fedskip.cli.output import folder as named
    from fedskip.cli.requested_study import requested_study
    from fedskip.config import Places, Tree, assigned, build
    from fedskip.flower.config import FEDERATION
    from fedskip.flower.folder import write_local
    from fedskip.flower.plan import FederationPlan
    from fedskip.records.folder import next_folder

    folder = named(out)
    if folder is not None and (folder / FEDERATION).exists():
        others = {"STUDY": study, "--rounds": rounds, "--methods": methods, "--set": assignments}
        rule, fix = f"is not for {folder}, which was begun", "leave it out, or choose another --out"
        for option, value in others.items():
            require(option, not value, rule, value, fix)
        FederationPlan.read(
            folder, trust=trust
        )  # refuses what is wrong with it before anything is started
        typer.echo(f"going on in {folder}")
    else:
        require("-n", 1 <= clients <= 64, "must be 1 to 64 on one machine", clients)
        given = {"methods": methods, "rounds": rounds}
        keys = {key: value for key, value in given.items() if value is not None}
        options = Tree(keys, Places({key: f"--{key}" for key in keys}))
        over = assigned(assignments or []).over(options)
        default = Tree({**STUDY, "cohort": clients})
        tree = over.over(default) if study is None else requested_study(study, over, trust=trust)
        folder = folder or next_folder("federation")
        write_local(folder, clients, build(tree))
        trust = True  # what is in the folder now
        typer.echo(f"{folder}: certificates, keys and shares of the data for {clients} clients")
    _train(folder, "local --out", host="127.0.0.1", nodes=True, insecure=insecure, trust=trust)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[str, typer.Option(help="Their names: site-a,site-b,site-c.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients reach it.")],
    study: Annotated[str | None, typer.Option(help="Of one method; else one to fill in.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name of it; may be repeated.")
    ] = None,
) -> None:
    """Make the folder of a new federation: certificates, keys, a Flower app, and what goes to each site."""
    _require_flower()
    from fedskip.config import bundled
    from fedskip.config.yaml_text import read_text
    from fedskip.flower.config import FederationConfig
    from fedskip.flower.folder import template, write_folder

    names = [name.strip() for name in clients.split(",") if name.strip()]
    config = FederationConfig(clients=tuple(names), server=server)
    text = read_text(bundled.find(study)) if study else template("study.yaml", cohort=len(names))
    write_folder(folder, config, text, host or [])
    typer.echo(f"{folder}: read README.md there; study.yaml says what is trained")


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a federation.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="On which to listen.")] = "0.0.0.0",
    trust: Trust = False,
    insecure: Insecure = False,
) -> None:
    """Serve a federation to its end; started again, it goes on from its last round."""
    _require_flower()
    from fedskip.flower.check import server_checks
    from fedskip.flower.config import RUN

    if (folder / RUN / "summary.csv").exists():
        typer.echo(f"{folder} is finished")
        _show_results(folder)
        return
    for _, look in server_checks(folder, insecure=insecure, starts=True, trust=trust):
        look()
    _train(folder, "server", host=host, nodes=False, insecure=insecure, trust=trust)


@app.command()
def client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="With a client.yaml.")] = Path("."),
    name: Annotated[str | None, typer.Option(help="Of this client.")] = None,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    data: Annotated[str | None, typer.Option(help="A file, or the name of a data set.")] = None,
    loader: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION")] = None,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="The federation's ca.crt.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    state_dir: Annotated[str | None, typer.Option(metavar="DIR", help="Memory and logs.")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Of the node, here.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most that visits may cost.")] = None,
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with this machine's data, until stopped. Options win over client.yaml."""
    given = {key: value for key, value in locals().items() if value is not None}
    options = {key: given[key] for key in given.keys() - {"folder", "insecure"}}
    _require_flower()
    from fedskip.flower.check import client_checks
    from fedskip.flower.config import ClientConfig
    from fedskip.flower.processes import keep_running

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
    folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path("."),
    trust: Trust = False,
    insecure: Insecure = False,
) -> None:
    """Check whether a server or a client can start: files, certificates, keys, versions, data, network."""
    _require_flower()
    from fedskip.flower.check import folder_checks

    failed = []
    for what, look in folder_checks(folder, insecure=insecure, trust=trust):
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
    text = f"round {done['round']}/{done['rounds']}  {done['seconds']:.1f} s"
    text += f"  {len(done['clients'])} clients"
    if done.get("test_accuracy") is not None:
        text += f"  test {done['test_accuracy']:.4f}, worst client {done['x_worst_client']:.4f}"
    typer.echo(text)
    for name, why in done["left_out"].items():
        typer.secho(f"  {name} was left out: {why}", fg="yellow")


def _show_results(folder: Path) -> None:
    from fedskip.cli.output import show_results
    from fedskip.flower.config import RUN
    from fedskip.report.results import Results

    show_results(Results.read(folder / RUN))


def _train(folder: Path, command: str, **options: Any) -> None:
    """Train a federation to its end. Tells a user whose federation stops how to go on."""
    from fedskip.flower.processes import RunFailed, train

    again = f"go on with: fedskip federation {command} {folder}"
    try:
        with closing(train(folder, typer.echo, **options)) as rounds:
            for done in rounds:
                _show_round(done)
    except KeyboardInterrupt:
        typer.secho(f"Stopped, all processes have ended; {again}", fg="yellow", err=True)
        raise typer.Exit(130) from None
    except RunFailed as error:
        typer.secho(f"error: {error}. All processes have ended; {again}", fg="red", err=True)
        raise typer.Exit(1) from None
    _show_results(folder)
