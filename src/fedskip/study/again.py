"""A study that is in its folder, from anywhere."""

import os

from fedskip.report.live import Shows
from fedskip.report.results import Results
from fedskip.report.trackers.audience import Trackers
from fedskip.study.study import Study


def resume(
    out: str | os.PathLike[str],
    progress: Shows = None,
    *,
    rounds: int | None = None,
    anyway: bool = False,
    trackers: Trackers = (),
    cluster: str | None = None,
) -> Results:
    """Go on with the study of a folder: `Study.load(out).resume()`, with the same arguments."""
    return Study.load(out, cluster=cluster).resume(progress, rounds=rounds, anyway=anyway, trackers=trackers)
