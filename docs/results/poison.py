"""What poisoners do to merges with and without skipping, from the study in `poison/`."""

from rich.text import Text

from fedskip.paper.beside import scores
from fedskip.paper.strongest import strongest
from fedskip.records.table import Row
from fedskip.report.results import Results
from fedskip.report.sheet import BEST, Sheet

STUDY = "poison"


def poison_sheet(kept: list[Results]) -> Sheet:
    """Methods by share of poisoners; the highest in each column is bold."""
    [found] = [study for study in kept if study.name == STUDY]
    places = list(dict.fromkeys(found.summary.column("setting")))
    methods = list(dict.fromkeys(found.summary.column("method")))
    runs: dict[tuple[str, str], list[Row]] = {
        (place, method): list(found.summary.where(setting=place, method=method))
        for place in places
        for method in methods
    }

    best = {place: strongest({method: runs[place, method] for method in methods}) for place in places}
    rows = [
        [
            Text(method),
            *(
                Text(scores(runs[place, method], "mean_tail"), BEST if best[place] == method else "")
                for place in places
            ),
        ]
        for method in methods
    ]
    return Sheet(STUDY, ["method", *(place.replace("flip-", "") for place in places)], 1, rows, "")


def poisoned(name: str, kept: list[Results]) -> str:
    """SETTING:METHOD, the mean of `tail` over seeds in per cent."""
    [found] = [study for study in kept if study.name == STUDY]
    place, _, method = name.partition(":")
    return scores(list(found.summary.where(setting=place, method=method)), "mean_tail")
