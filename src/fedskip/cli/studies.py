"""`fedskip run`, `fedskip resume` and `fedskip extend`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedskip.cli.folders import folder
from fedskip.errors import InputError, require
from fedskip.report import TRACKERS

LONGEST = 1_000_000  # seconds of grace
Grace = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="After a signal, stop within this time even if no checkpoint has come.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="NAME", help=f"{', '.join(TRACKERS)}, or MODULE:CLASS; may be repeated."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="local|HOST:PORT", help="Train on all devices of a Ray cluster; local starts one."
    ),
]
Groups = Annotated[
    int | None, typer.Option(metavar="N", help="Split the runs of a setting into N groups.")
]
Mixed = Annotated[
    bool, typer.Option("--anyway", help="On a cluster: train even if its devices differ.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1, cohort=5, ..."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Run only this setting; may be repeated, and hold *."),
]


def check_grace(grace: float | None) -> None:
    rule, fix = f"must be from 0 to {LONGEST:,} seconds", "leave it out to wait for a checkpoint"
    require("--grace", grace is None or 0 <= grace <= LONGEST, rule, grace, fix)


def run(
    study: Annotated[
        str | None, typer.Argument(help="A bundled study, STUDY/SETTING or a file.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Such as 'fedavg, fedskip(period=5)'.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N")] = None,
    scale: Annotated[
        float | None,
        typer.Option(metavar="X", help="This share of the rounds, for the paper's studies."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="How many: 0, 1, ... N-1.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="auto|loop|stacked")] = None,
    device: Annotated[str | None, typer.Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    cluster: Cluster = None,
    groups: Groups = None,
    anyway: Mixed = False,
    assignments: Set = None,
    only: Only = None,
    out: Annotated[
        str | None, typer.Option(help="By default runs/STUDY-N.", show_default=False)
    ] = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Run a study: quickstart, one of the paper's, a file, or a data set's defaults (--set data.name=...)."""
    from fedskip.cli.requested_study import requested_study
    from fedskip.cli.screen import close
    from fedskip.cli.stopping import resumable
    from fedskip.config import Places, Tree, assigned, build, narrowed
    from fedskip.report.trackers import make_tracker
    from fedskip.study import Study

    check_grace(grace)
    keys = {
        "methods": methods,
        "rounds": rounds,
        "seeds": seeds,
        "engine": engine,
        "device": device,
    }
    keys |= {"cluster": cluster, "groups": groups}
    given = {key: value for key, value in keys.items() if value is not None}
    _refuse_twice(given, assignments or [])
    over = assigned(assignments or []).over(Tree(given, Places({key: f"--{key}" for key in given})))
    trackers = [make_tracker(name, "--track") for name in track or ()]
    spec = build(requested_study(study, over, scale))
    new = Study(folder(out), spec=narrowed(spec, only) if only else spec)
    with resumable(new, grace):
        results = new.run(progress=True, anyway=anyway, trackers=trackers)
    close(results)


def _refuse_twice(given: dict[str, Any], assignments: list[str]) -> None:
    """Refuse a key that an option and --set both have."""
    for assignment in assignments:
        if (key := assignment.split("=")[0].strip()) in given:
            fix = f"leave out --set {assignment}"
            raise InputError(f"--{key}", "must not be given twice", given[key], fix)


def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a study.", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Train for more rounds than planned.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on even if a library or the machine has changed.")
    ] = False,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Resume a study from its last checkpoint."""
    from fedskip.cli.screen import close
    from fedskip.cli.stopping import resumable
    from fedskip.report.page import write_report
    from fedskip.report.trackers import make_tracker
    from fedskip.study import Study

    check_grace(grace)
    trackers = [make_tracker(name, "--track") for name in track or ()]
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
    out: Annotated[
        Path, typer.Argument(help="The folder of a finished study.", show_default=False)
    ],
    methods: Annotated[
        str | None,
        typer.Option(help="Run these at the existing seeds: 'scaffold, moon(mu=5)'."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N|LIST", help="Run all methods at these: 5 is 0 to 4; or 7,8,9."),
    ] = None,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Add methods or seeds to a finished study. Existing numbers do not change."""
    from fedskip.cli.screen import close
    from fedskip.cli.stopping import resumable
    from fedskip.report.trackers import make_tracker
    from fedskip.study import Study

    check_grace(grace)
    given, fix = methods is not None or seeds is not None, "such as --seeds 5 or --methods moon"
    require("extend", given, "must be given --methods or --seeds", fix=fix)
    trackers = [make_tracker(name, "--track") for name in track or ()]
    study = Study.load(out, cluster=cluster)
    with resumable(study, grace):
        results = study.extend(
            progress=True, methods=methods, seeds=_seeds(seeds), trackers=trackers
        )
    close(results)


def _seeds(text: str | None) -> str | list[str] | None:
    """A number of seeds, or a list of them. `Study.extend` refuses what is neither."""
    parts = [part.strip() for part in (text or "").split(",")]
    return [part for part in parts if part] if len(parts) > 1 else text
