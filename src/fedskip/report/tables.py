"""Tables as people read them: on a terminal, in Markdown, LaTeX and HTML.

`TextTable` holds text under headers. The functions below make one of the DataFrames of a study.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from fedskip.config.study import short_names, value_text
from fedskip.report import divergence, units
from fedskip.report.results import Results, SettingInfo
from fedskip.report.statistics import BASELINE, BETTER, COSTS, WORSE
from fedskip.report.sweeps import sweeps

if TYPE_CHECKING:
    import pandas as pd

GAP = 3  # of a column on a terminal: a space on both sides, and one to the next column
ENOUGH = 5  # seeds from which on the best are marked

# column of summary.csv -> its header, its name in a sentence, and an explanation
SCORES = {
    "last": ("last", "last {metric}", "at the last evaluation"),
    "best": ("best", "best {metric}", "{highest} of a run, chosen on the test set"),
    "mean_tail": ("last 10%", "final {metric}", "mean of the last 10 % of rounds"),
    "best_val": ("by val.", "{metric} by validation", "where the validation score was best"),
    "full_test": (
        "full test",
        "{metric} on all test samples",
        "the last model on all test samples",
    ),
    "worst_clients": (
        "worst 10%",
        "{metric} of the worst clients",
        "the last model on the tenth of the clients where it is worst",
    ),
    "final": (
        "extra merge",
        "{metric} after an extra merge",
        "after one more merge, where the period does not divide the rounds",
    ),
}


@dataclass(frozen=True)
class TextTable:
    """Text under headers; the first columns name a row. Too wide a table is split between columns."""

    title: str
    headers: Sequence[str]
    names: int  # columns that name a row
    rows: Sequence[Sequence[str]]  # an empty one separates groups
    best: Collection[tuple[int, int]] = ()  # row and column of the cells that are marked as best
    styles: Mapping[int, str] = field(default_factory=dict)  # of rows, on a terminal
    note: str = ""  # what the numbers are

    # --- on a terminal -----------------------------------------------------------------------------

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        for number, columns in enumerate(self.split(options.max_width)):
            yield self._part(columns, None if number else self.title)

    def split(self, width: int) -> list[list[int]]:
        """The columns of each part: as many as fit beside the names, and at least one."""
        widths = [
            GAP + max([cell_len(header), *(cell_len(row[i]) for row in self.rows if row)])
            for i, header in enumerate(self.headers)
        ]
        parts: list[list[int]] = []
        left = 0
        for i in range(self.names, len(self.headers)):
            if not parts or widths[i] > left:
                parts.append([*range(self.names)])
                left = width - sum(widths[: self.names]) - 1  # at the edge
            parts[-1].append(i)
            left -= widths[i]
        return parts or [[*range(self.names)]]

    def _part(self, columns: Sequence[int], title: str | None) -> Table:
        table = Table(box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left")
        for i in columns:
            names = i < self.names
            side, wrap = ("left", False) if names else ("right", True)
            table.add_column(self.headers[i], justify=side, no_wrap=wrap, overflow="fold")  # type: ignore[arg-type]
        for r, row in enumerate(self.rows):
            if not row:
                table.add_section()
                continue
            style = self.styles.get(r, "")
            cells = (Text(row[i], "bold green" if (r, i) in self.best else style) for i in columns)
            table.add_row(*cells)
        return table

    # --- for papers and pages ------------------------------------------------------------------------

    def markdown(self) -> str:
        """For a README or an issue; the best are bold, and the note stands below."""

        def cell(r: int, i: int, content: str) -> str:
            plain = re.sub(r"([|*`])", r"\\\1", content).replace("<", "&lt;")
            return f"**{plain}**" if (r, i) in self.best else plain

        rule = ["---"] * self.names + ["---:"] * (len(self.headers) - self.names)
        lines = [self.headers, rule, *self._cells(cell)]
        note = ["", self.note] if self.note else []
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *note, ""])

    def latex(self, label: str = "") -> str:
        """For a paper: a table with the rules of `booktabs`; the best are bold."""

        def cell(r: int, i: int, content: str) -> str:
            return f"\\textbf{{{_latex(content)}}}" if (r, i) in self.best else _latex(content)

        caption = ". ".join(part for part in (self.title, self.note) if part)
        columns = "l" * self.names + "r" * (len(self.headers) - self.names)
        body = iter(" & ".join(line) + r" \\" for line in self._cells(cell))
        rows = [next(body) if row else r"\midrule" for row in self.rows]
        return "\n".join(
            [
                "% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering",
                f"\\caption{{{_latex(caption)}}}", *([f"\\label{{tab:{label}}}"] if label else []),
                f"\\begin{{tabular}}{{{columns}}}", r"\toprule",
                " & ".join(map(_latex, self.headers)) + r" \\", r"\midrule", *rows, r"\bottomrule",
                r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip

    def html(self, mark: str = "class=best") -> str:
        """For a page or a notebook; the best have the attribute `mark`."""

        def cell(r: int, i: int, content: str) -> str:
            tag = "th" if i < self.names else "td"
            return (
                f"<{tag}{f' {mark}' if (r, i) in self.best else ''}>{html.escape(content)}</{tag}>"
            )

        sides = [" class=name"] * self.names + [""] * (len(self.headers) - self.names)
        heads = zip(sides, map(html.escape, self.headers), strict=True)
        head = "".join(f"<th{side}>{header}</th>" for side, header in heads)
        lines = "".join(f"<tr>{''.join(line)}</tr>" for line in self._cells(cell))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"

    def _cells(self, cell: Any) -> list[list[str]]:
        """The cells of all rows but empty ones, each made by `cell(row, column, text)`."""
        return [
            [cell(r, i, c) for i, c in enumerate(row)] for r, row in enumerate(self.rows) if row
        ]


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "[": "{[}"}
_SPECIAL |= {"±": r"$\pm$", "–": "--", "−": "$-$", "Δ": r"$\Delta$", "β": r"$\beta$"}


def _latex(content: str) -> str:
    signs = re.sub(r"(?<![\w.])-(?=\d)", "−", content)  # of a number, not of a name
    return "".join(_SPECIAL.get(sign, sign) for sign in signs)


# --- the closing table -------------------------------------------------------------------------------


def closing_table(results: Results, *, costs: bool = True) -> TextTable:
    """All scores over seeds, and their costs: the table that ends a study."""
    scores, settings = shown_scores(results), {one.name: one for one in results.settings}
    leaders = {(s.name, n): best_methods(results, s, n) for s in results.compared for n in scores}
    records = results.table.to_dict("records")
    diverged = costs and any(row["diverged"] for row in records)
    rows: list[dict[str, str]] = []
    styles, marked = {}, []
    for row in sorted(
        records, key=lambda row: settings[row["setting"]].reference
    ):  # references last
        setting, label = settings[row["setting"]], str(row["method"])
        cells = {SCORES[name][0]: _score(results, setting, row, name) for name in scores}
        if setting.reference:  # its bytes mean nothing
            styles[len(rows)] = "italic cyan"
            rows.append({"setting": "", "method": f"{setting.name} ({label})", **cells})
            continue
        if costs:
            cells |= {"bytes": units.size(row["bytes_total"]), "merges": f"{row['merges']:.0f}"}
        if diverged:
            count = f"{row['diverged']} of {row['seeds']}" if row["diverged"] else ""
            cells["diverged"] = count
        best = [SCORES[name][0] for name in scores if label in leaders[setting.name, name]]
        marked += [(len(rows), header) for header in best]
        rows.append({"setting": setting.name, "method": label, **cells})
    by = {setting.metric.with_unit(" in %") for setting in results.settings if setting.by}
    title = f"{results.name}, by {' and '.join(sorted(by))}" if by else results.name
    return _table(title, rows, len(results.compared) > 1, " ".join(notes(results)), marked, styles)


def _table(
    title: str,
    records: Sequence[Mapping[str, str]],
    several: bool,
    note: str,
    marked: Iterable[tuple[int, str]] = (),
    styles: Mapping[int, str] | None = None,
) -> TextTable:
    """A table of records: their first column, the setting, only where there are several, and once.

    `marked`: record and column of the best cells; `styles`: of records.
    """
    first, *others = dict.fromkeys(name for row in records for name in row)
    headers = [first, *others] if several else others
    rows: list[list[str]] = []
    place, group = {}, None
    for number, record in enumerate(records):
        if rows and record[first] != group:
            rows.append([])
        name = "" if record[first] == group else record[first]
        place[number], group = len(rows), record[first]
        rows.append([*[name] * several, *(record.get(header, "") for header in others)])
    best = {(place[number], headers.index(header)) for number, header in marked}
    shown = {place[number]: style for number, style in (styles or {}).items()}
    return TextTable(title, headers, 1 + several, rows, best, shown, note)


def shown_scores(results: Results) -> list[str]:
    """The scores that were measured."""
    scores = [name for name in SCORES if results.table[name].notna().any()]
    if "full_test" in scores and not evaluated_in_part(results):
        scores.remove("full_test")  # every evaluation was of all test samples
    return scores


def best_methods(results: Results, setting: SettingInfo, score: str) -> list[str]:
    """The methods to mark as best; none with too few seeds, or where there is no choice."""
    enough = results.runs(setting.name)["seed"].nunique() >= ENOUGH
    # `final` has no winner: only methods in the middle of a period have it
    choice = score != "final" and len(results.labels(setting.name)) > 1
    return results.leaders(setting.name, score) if enough and choice else []


def _score(results: Results, setting: SettingInfo, row: Mapping[str, Any], name: str) -> str:
    """A score over seeds; behind `last` its round, where that is not the last one."""
    shown = units.spread(row[name], row[f"{name}_std"], setting.metric)
    if name != "last" or setting.reference or math.isnan(row[name]):
        return shown
    at = last_evaluation(results, setting, row["method"])
    return f"{shown} ({at})" if at < setting.rounds else shown


def last_evaluation(results: Results, setting: SettingInfo, label: str) -> int:
    """The round of a method's last evaluation; the setting's last where there is no history."""
    rounds = results.rows(setting.name, label)["round"]
    return int(rounds.max()) if len(rounds) else setting.rounds


def notes(results: Results, mark: str = "Bold") -> list[str]:
    """Below the closing table: what its numbers are. `mark` is what marks the best."""
    lines = [] if results.finished else ["Not finished: these are the numbers so far."]
    lines.append(caption(results))
    if scores := shown_scores(results):
        explanations = (f"{SCORES[name][0]}: {explanation(results, name)}" for name in scores)
        lines.append(f"{'; '.join(explanations)}.")
    groups = [one for one in results.compared if len(results.labels(one.name)) > 1]
    seeds = [results.runs(one.name)["seed"].nunique() for one in groups]
    if any(n >= ENOUGH for n in seeds):
        lines.append(
            f"{mark}: not significantly different from the best "
            "(the 95 % CI of the paired differences includes 0)."
        )
    if any(n < ENOUGH for n in seeds):
        lines.append(f"The best are not marked with fewer than five seeds ({min(seeds)} here).")
    pairs = [(one, label) for one in results.compared for label in results.labels(one.name)]
    if any(last_evaluation(results, one, label) < one.rounds for one, label in pairs):
        lines.append(
            "In brackets: the round of the last evaluation, where it is not the last round."
        )
    early = results.summary[results.summary["ended"] != ""]
    if len(early):
        first, last = early["rounds"].min(), early["rounds"].max()
        span = f"round {first}" if first == last else f"rounds {first} to {last}"
        why = " or ".join(sorted(early["ended"].unique()))
        lines.append(f"{len(early)} of {len(results.summary)} runs ended early, at {span} ({why}).")
    return [*lines, *divergence.notes(results)]


def caption(results: Results) -> str:
    """What was measured, on what, and how often."""
    metrics = dict.fromkeys(one.metric.with_unit(" in %") for one in results.settings)
    sizes = " or ".join(f"{size:,}" for size in evaluated_in_part(results))
    part = f", {sizes} of them during training" if sizes else ""
    remarks = "".join(f"; {remark}" for remark in results.remarks)
    tested = test_samples(results.settings)
    return f"Test {' and '.join(metrics)}, {_over_seeds(results)}; {tested}{part}; bytes and merges of one run{remarks}."


def _over_seeds(results: Results) -> str:
    """What scores are means over; settings with other seeds are named."""
    runs = results.summary.groupby("setting", sort=False)["seed"].unique()
    seeds = {name: sorted(map(int, some)) for name, some in runs.items()}
    lists = {name: ", ".join(map(str, some)) for name, some in seeds.items()}
    if len(set(lists.values())) > 1:
        each = "; ".join(f"{name} {some}" for name, some in lists.items())
        return f"mean ± standard deviation over seeds ({each})"
    first = next(iter(seeds.values()))
    if len(first) == 1:
        return f"seed {first[0]}"
    which = f" ({', '.join(map(str, first))})" if len(first) <= 10 else ""
    return f"mean ± standard deviation over {len(first)} seeds{which}"


def explanation(results: Results, score: str) -> str:
    """Which number a score is."""
    shown = [m for one in results.settings for m in ([one.metric] if one.by else one.metrics)]
    best = units.best(shown)
    return SCORES[score][2].format(highest=f"the {best}")


def name_of(score: str, metric: units.Metric) -> str:
    """A score in a sentence, such as `final accuracy`."""
    return SCORES[score][1].format(metric=metric.words)


def evaluated_in_part(results: Results) -> list[int]:
    """How many test samples were evaluated during training, where these were not all."""
    divisions = [facts for setting in results.settings for facts in setting.divisions.values()]
    sizes = [(d["evaluated"], d["test"]) for d in divisions if "evaluated" in d and "test" in d]
    return sorted({evaluated for evaluated, test in sizes if evaluated < test})


def test_samples(settings: Iterable[SettingInfo]) -> str:
    """The sizes of the test sets."""
    sizes = {}
    for setting in settings:
        counts = {facts["test"] for facts in setting.divisions.values() if "test" in facts}
        if counts:
            ends = sorted({min(counts), max(counts)})
            sizes[setting.name] = " to ".join(f"{size:,}" for size in ends)
    if not sizes:
        return "an unknown number of test samples"
    if len(set(sizes.values())) == 1:
        return f"{sizes.popitem()[1]} test samples"
    return f"test samples: {', '.join(f'{name} {size}' for name, size in sizes.items())}"


def closing_text(results: Results, width: int = 120) -> str:
    """The closing table and its notes as plain text, where a star marks the best."""
    table = closing_table(results)
    columns = {column for _, column in table.best}
    starred = [
        [
            c + (("*" if (r, i) in table.best else " ") if i in columns else "")
            for i, c in enumerate(row)
        ]
        for r, row in enumerate(table.rows)
    ]
    plain = TextTable(table.title, table.headers, table.names, starred)
    out = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    lines = notes(results, "Star")
    out.print(plain, *lines, sep="\n", markup=False, highlight=False, emoji=False)
    content: str = out.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in content.strip("\n").splitlines())


def closing_html(results: Results) -> str:
    """The same for a notebook: without colours and scripts."""
    below = "".join(f"<div>{html.escape(note)}</div>" for note in notes(results))
    table = closing_table(results).html("style=font-weight:bold")
    return f"<b>{html.escape(results.name)}</b>{table}{below}"


# --- differences, targets, best values ---------------------------------------------------------------


def comparison_table(
    results: Results, comparison: pd.DataFrame, baseline: str, score: str
) -> TextTable:
    """Differences from the baseline, their intervals, wins, losses and ranks."""
    metrics = {setting.name: setting.metric for setting in results.compared}
    rows = []
    for row in comparison.to_dict("records"):
        metric = metrics.get(row["setting"], units.ACCURACY)
        apart, low, high = (units.difference(row[k], metric) for k in ("difference", "low", "high"))
        interval = units.NONE if math.isnan(row["low"]) else f"{low} to {high}"
        cells = [apart, interval, str(row["wins"]), str(row["losses"])]
        cells = [units.NONE] * 4 if row["verdict"] == BASELINE else cells
        cells.append(units.NONE if math.isnan(row["rank"]) else f"{row['rank']:.2f}")
        names = ("difference", "95% CI", "won", "lost", "rank")
        record = {"setting": row["setting"], "method": row["method"]}
        rows.append(record | dict(zip(names, cells, strict=True)) | {"verdict": row["verdict"]})
    colours = {BETTER: "green", WORSE: "red"}
    styles = {i: colours[row["verdict"]] for i, row in enumerate(rows) if row["verdict"] in colours}
    words = " and ".join(dict.fromkeys(name_of(score, one) for one in metrics.values()))
    note = (
        f"differences from {baseline} in {words} on the test set, seed by seed ({SCORES[score][0]}: "
        f"{explanation(results, score)}); 95 % confidence intervals by Student's t; seeds won and lost; "
        f"mean rank, 1 is the {units.best(metrics.values())}"
    )
    title = f"{words[0].upper()}{words[1:]}, compared with {baseline}"
    note = units.sentences([note, *results.remarks])
    return _table(title, rows, len(metrics) > 1, note, styles=styles)


def target_table(results: Results, targets: pd.DataFrame) -> TextTable:
    """Rounds, merges and bytes of every method until it first reaches the target."""
    metrics = {setting.name: setting.metric for setting in results.compared}
    rows = []
    for row in targets.to_dict("records"):
        record = {"setting": row["setting"], "method": row["method"]}
        record["target"] = target_name(row["target"], metrics[row["setting"]])
        record["reached"] = f"{row['reached']} of {row['seeds']}"
        for name in COSTS:
            mean, deviation = row[name], row[f"{name}_std"]
            show = units.size if name == "bytes" else "{:.0f}".format
            spread = "" if math.isnan(deviation) else f" ± {show(deviation)}"
            header = "sent, both ways" if name == "bytes" else name
            record[header] = units.NONE if math.isnan(mean) else show(mean) + spread
        rows.append(record)
    goals, title = {row["target"] for row in rows}, "To reach the target"
    if len(goals) == 1:
        title = f"To reach {goals.pop()}"
        rows = [{k: v for k, v in row.items() if k != "target"} for row in rows]
    note = "until a method first reaches the target, seed by seed; mean ± standard deviation over the seeds that do"
    return _table(title, rows, len(metrics) > 1, units.sentences([note, *results.remarks]))


def target_name(target: float | str, metric: units.Metric) -> str:
    """A target in words.

    >>> target_name("FedAvg", units.ACCURACY), target_name(0.68, units.ACCURACY)
    ("FedAvg's best accuracy", '68.00 %')
    """
    if isinstance(target, str):
        return f"{target}'s best {metric.words}"
    return units.score(target, metric) + " %" * metric.percent


def best_values_table(results: Results) -> TextTable:
    """The best values of every swept key, by method."""
    grids = {sweep.name: sweep for sweep in sweeps(results)}
    keys = short_names(dict.fromkeys(key for sweep in grids.values() for key in sweep.keys))
    rows = []
    for row in results.chosen.to_dict("records"):
        sweep, done = grids[row["sweep"]], isinstance(row["setting"], str)
        first, record = sweep.settings[0], {"sweep": sweep.name, "method": row["method"]}
        for key, short in keys.items():
            value = value_text(row[key]) if done else units.NONE
            record[short] = value if key in sweep.keys else ""
        validation = row["chosen_by"] if row["by"] == "validation" else math.nan
        record["validation"] = units.score(validation, first.metrics[0])
        test = units.spread(row["score"], row["score_std"], first.metric)
        rows.append(record | {"test": test if done else "diverged or not done"})
    how = {
        "validation": "Chosen for each method by the best validation score, mean over seeds; "
        "the test score is that of the round where it was best.",
        "test": "Chosen on the test set (last 10 % of rounds), so these numbers are optimistic: "
        "with validation: 0.1 a study chooses on samples of their own.",
    }
    notes_ = [words for by, words in how.items() if by in {sweep.by for sweep in grids.values()}]
    note = " ".join(filter(None, [*notes_, units.sentences(results.remarks)]))
    return _table("Best values", rows, len(grids) > 1, note)
