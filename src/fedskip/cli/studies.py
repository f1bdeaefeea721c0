"""`fedskip run`, `fedskip resume` and `fedskip extend`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedskip.cli.output import folder, show_results
from fedskip.errors import require
from fedskip.report import TRACKERS

if TYPE_CHECKING:
    from fedskip.report.results import Results
    from fedskip.study import Study

LONGEST_GRACE = 1_000_000  # seconds of grace
Folder = Annotated[Path, Argument(help="The folder of a study.", show_default=False)]
Cluster = Annotated[
    str | None,
    Option(
        metavar="local|HOST:PORT", help="Train on all devices of a Ray cluster; local starts one."
    ),
]
Track = Annotated[
    list[str] | None,
    Option(metavar="NAME", help=f"{', '.join(TRACKERS)}, or MODULE:CLASS; may be repeated."),
]
Trust = Annotated[bool, Option("--trust", help="Import and run the code that the file names.")]
Grace = Annotated[
    float | None,
    Option(metavar="SECONDS", help="After a signal, stop within this time, checkpoint or not."),
]


def run(
    study: Annotated[
        str | None,
        Argument(
            help="A bundled study, STUDY/SETTING or a file; quickstart without.", show_default=False
        ),
    ] = None,
    methods: Annotated[str | None, Option(help="Such as 'fedavg, fedskip(period=5)'.")] = None,
    rounds: Annotated[int | None, Option(metavar="N")] = None,
    scale: Annotated[
        float | None, Option(metavar="X", help="This share of the rounds, for the paper's studies.")
    ] = None,
    seeds: Annotated[int | None, Option(metavar="N", help="How many: 0, 1, ... N-1.")] = None,
    engine: Annotated[str | None, Option(metavar="auto|loop|stacked")] = None,
    device: Annotated[str | None, Option(metavar="auto|cpu|cuda|cuda:N")] = None,
    cluster: Cluster = None,
    groups: Annotated[
        int | None, Option(metavar="N", help="Split the runs of a setting into N groups.")
    ] = None,
    anyway: Annotated[
        bool, Option("--anyway", help="On a cluster: train even if its devices differ.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        Option(
            "--set", metavar="KEY=VALUE", help="Any key of a study: local.lr=0.1, cohort=5, ..."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Run only this setting; may be repeated, and hold *."),
    ] = None,
    out: Annotated[str | None, Option(help="By default runs/STUDY-N.", show_default=False)] = None,
    trust: Trust = False,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Run a study: a bundled one, a file, or the defaults of a data set (--set data.name=...)."""
    from fedskip.cli.requested_study import requested_study
    from fedskip.config import Places, Tree, assigned, build, narrowed
    from fedskip.study import Study

    keys = {
        "methods": methods, "rounds": rounds, "seeds": seeds, "engine": engine, "device": device,
        "cluster": cluster, "groups": groups,
    }  # fmt: skip
    given = {key: value for key, value in keys.items() if value is not None}
    for assignment in assignments or ():
        key, fix = assignment.split("=")[0].strip(), f"leave out --set {assignment}"
        require(f"--{key}", key not in given, "must not be given twice", given.get(key), fix)
    over = assigned(assignments or []).over(Tree(given, Places({key: f"--{key}" for key in given})))
    spec = build(requested_study(study, over, scale, trust=trust))
    new = Study(folder(out), spec=narrowed(spec, only) if only else spec)
    _train(new, new.run, track, grace, anyway=anyway)


def resume(
    out: Folder,
    rounds: Annotated[
        int | None, Option(metavar="N", help="Train for more rounds than planned.")
    ] = None,
    anyway: Annotated[
        bool, Option("--anyway", help="Go on even if a library or the machine has changed.")
    ] = False,
    trust: Trust = False,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Resume a study from its last checkpoint."""
    from fedskip.study import Study

    study = Study.load(out, cluster=cluster, trust=trust)
    if rounds is not None or track or not study.is_finished():
        _train(study, study.resume, track, grace, rounds=rounds, anyway=anyway)
        return
    typer.echo(f"{out} is finished; go on with --rounds N")
    show_results(study.restored())


def extend(
    out: Folder,
    methods: Annotated[
        str | None, Option(help="Run these at the existing seeds: 'scaffold, moon(mu=5)'.")
    ] = None,
    seeds: Annotated[
        str | None,
        Option(metavar="N|LIST", help="Run all methods at these: 5 is 0 to 4; or 7,8,9."),
    ] = None,
    trust: Trust = False,
    cluster: Cluster = None,
    track: Track = None,
    grace: Grace = None,
) -> None:
    """Add methods or seeds to a finished study. Existing numbers do not change."""
    from fedskip.study import Study

    given, fix = methods is not None or seeds is not None, "such as --seeds 5 or --methods moon"
    require("extend", given, "must be given --methods or --seeds", fix=fix)
    listed = (
        [part for part in seeds.split(",") if part.strip()] if seeds and "," in seeds else seeds
    )
    study = Study.load(out, cluster=cluster, trust=trust)
    _train(study, study.extend, track, grace, methods=methods, seeds=listed)


def _train(
    study: Study,
    start: Callable[..., Results],
    track: list[str] | None,
    grace: float | None,
    **options: Any,
) -> None:
    """Train with `start`, a method of the study; end well when stopped, and show the results."""
    from fedskip.cli.stopping import resumable
    from fedskip.report.trackers import make_tracker

    rule, fix = (
        f"must be from 0 to {LONGEST_GRACE:,} seconds",
        "leave it out to wait for a checkpoint",
    )
    within = grace is None or 0 <= grace <= LONGEST_GRACE
    require("--grace", within, rule, grace, fix)
    trackers = [make_tracker(name, "--track") for name in track or ()]
    with resumable(study, grace):
        results = start(progress=True, trackers=trackers, **options)
    show_results(results)
