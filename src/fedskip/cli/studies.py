"""`fedskip run`, `fedskip resume` and `fedskip extend`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.cli.folders import folder, folders
from fedskip.input.errors import InputError, require
from fedskip.report.choices import TRACKERS

LONGEST = 1_000_000  # seconds of grace
Grace = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="After a signal to stop: end by then, whether a checkpoint has come or not."
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help=f"{', '.join(TRACKERS)}, or MODULE:CLASS; may be repeated."),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="local|HOST:PORT", help="Train on all devices of a Ray cluster; local starts one."),
]
Groups = Annotated[int | None, typer.Option(metavar="N", help="Into which the runs of a setting are cut.")]
Mixed = Annotated[bool, typer.Option("--anyway", help="On a cluster, also on devices of several models.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1, cohort=5, ..."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Of its settings only this one; may be repeated, and hold *."),
]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="OUT",
        help="A study to compute table4, fig2, fig4, ... from, or a folder of such; may be repeated.",
    ),
]


def check_grace(grace: float | None) -> None:
    rule, fix = f"must be from 0 to {LONGEST:,} seconds", "leave it out to wait for the next checkpoint"
    require("--grace", grace is None or 0 <= grace <= LONGEST, rule, grace, fix)


def run(
    study: Annotated[str | None, typer.Argument(help="A bundled study, STUDY/SETTING or a file.")] = None,
    methods: Annotated[str | None, typer.Option(help="Such as 'fedavg, fedskip(period=5)'.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    scale: Annotated[
        float | None, typer.Option(metavar="X", help="So much of the rounds of one of the paper's studies.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many: 0, 1, ... N-1.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="auto|loop|stacked")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    cluster: Cluster = None,
    groups: Groups = None,
    anyway: Mixed = False,
    assignments: Set = None,
    only: Only = None,
    out: Annotated[str | None, typer.Option(help="By default runs/STUDY-N.", show_default=False)] = None,
    sources: From = None,
    models: Annotated[
        str | None, typer.Option(help="Of complexity: cnn,perceptron,... Without it, all five.")
    ] = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Run a study: quickstart, one of the paper's, a file, or a data set's defaults (--set data.name=...)."""
    from fedskip.cli.chosen import chosen
    from fedskip.cli.paper import beside, compute, picture
    from fedskip.cli.screen import close, resumable
    from fedskip.paper.computed import COMPUTED
    from fedskip.report.trackers.audience import tracker
    from fedskip.spec import Tree, assigned, build, narrowed
    from fedskip.study import Study

    check_grace(grace)
    keys = {"methods": methods, "rounds": rounds, "seeds": seeds, "engine": engine, "device": device}
    keys |= {"cluster": cluster, "groups": groups}
    given = {key: value for key, value in keys.items() if value is not None}
    require("--models", models is None or study == "complexity", "is only for complexity", models)
    if study in COMPUTED:
        others = {"scale": scale, "set": assignments, "only": only, "track": track, "grace": grace}
        _refuse_trained(study, given | others)
        compute(study, folders(sources, "--from"), folder(out), models)
        return
    of_runs = ", ".join(name for name, made in COMPUTED.items() if made.of_runs)
    require("--from", not sources, "is for what is computed", " ".join(sources or ()), f"one of {of_runs}")
    _refuse_twice(given, assignments or [])
    over = assigned(assignments or []).over(Tree(given, {key: f"--{key}" for key in given}))
    trackers = [tracker(name, "--track") for name in track or ()]
    spec = build(chosen(study, over, scale))
    new = Study(folder(out), spec=narrowed(spec, only) if only else spec)
    with resumable(new, grace):
        results = new.run(progress=True, anyway=anyway, trackers=trackers)
    table = (study or "").partition("/")[0]
    figures = results.out / "figures"
    close(results, lambda: beside(table, results), lambda: picture([table], [results], figures))


def _refuse_trained(study: str | None, given: dict[str, Any]) -> None:
    """Refuse options that are for what is trained."""
    for key, value in given.items():
        if value not in (None, []):
            raise InputError(f"--{key}", f"is not for {study}, which is computed", value, "leave it out")


def _refuse_twice(given: dict[str, Any], assignments: list[str]) -> None:
    """Refuse a key that an option and --set both have."""
    for assignment in assignments:
        if (key := assignment.split("=")[0].strip()) in given:
            fix = f"leave out --set {assignment}"
            raise InputError(f"--{key}", "must not be given twice", given[key], fix)


def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a study.", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Go on to more rounds than planned.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also where a library or the machine has changed.")
    ] = False,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Go on with a study from its last checkpoint."""
    from fedskip.cli.screen import close, resumable
    from fedskip.report.page import write_report
    from fedskip.report.trackers.audience import tracker
    from fedskip.study import Study

    check_grace(grace)
    trackers = [tracker(name, "--track") for name in track or ()]
    study = Study.load(out, cluster=cluster)
    if rounds is None and not trackers and study.is_finished():
        typer.echo(f"{out} is finished; go on with --rounds N")
        results = study.results()
        if not (out / "report.html").exists():  # a kill came before it
            study.folder.clear()
            write_report(results)
    else:
        with resumable(study, grace):
            results = study.resume(progress=True, rounds=rounds, anyway=anyway, trackers=trackers)
    close(results)


def extend(
    out: Annotated[Path, typer.Argument(help="The folder of a finished study.", show_default=False)],
    methods: Annotated[
        str | None, typer.Option(help="To be run at the seeds that are there: 'scaffold, moon(mu=5)'.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N|LIST", help="To be run with all methods: 5 is 0 to 4; or 7,8,9.")
    ] = None,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Add methods or seeds to a finished study, beside what is there, whose numbers stay as they are."""
    from fedskip.cli.screen import close, resumable
    from fedskip.report.trackers.audience import tracker
    from fedskip.study import Study

    check_grace(grace)
    given = methods is not None or seeds is not None
    require("extend", given, "must be given --methods or --seeds", fix="such as --seeds 5 or --methods moon")
    trackers = [tracker(name, "--track") for name in track or ()]
    study = Study.load(out, cluster=cluster)
    with resumable(study, grace):
        results = study.extend(progress=True, methods=methods, seeds=_seeds(seeds), trackers=trackers)
    close(results)


def _seeds(text: str | None) -> str | list[str] | None:
    """How many, or a list of them; what is neither is refused where seeds are read."""
    parts = [part.strip() for part in (text or "").split(",")]
    return [part for part in parts if part] if len(parts) > 1 else text
