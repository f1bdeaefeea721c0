"""The table of the quickstart in README.md, from the study in `quickstart/`."""

from pathlib import Path

from fedskip.paper.beside import scores, shown_gain
from fedskip.report.closing import scored
from fedskip.report.results import Results
from fedskip.report.sheet import Sheet
from fedskip.report.statistics import difference

FOLDER = Path(__file__).parent / "quickstart"
SETTING, BASELINE = "synthetic", "FedAvg"


def quickstart_sheet() -> Sheet:
    """As `fedskip run` prints it; what it says below stands on the page."""
    sheet = scored(Results.read(FOLDER))
    return Sheet(sheet.title, sheet.headers, sheet.names, sheet.rows)


def gained(method: str) -> str:
    """What a method gains over FedAvg by tail, paired by seed, with Student's 95 % interval."""
    found = Results.read(FOLDER)
    mine, theirs = (found.scores(SETTING, name, "mean_tail") for name in (method, BASELINE))
    return shown_gain(difference(mine, theirs))


def centralised() -> str:
    """The best accuracy of one client with all data."""
    return scores(list(Results.read(FOLDER).summary.where(setting="centralised")), "best")
