"""Tables and numbers as people read them: on a terminal, in Markdown, LaTeX and HTML.

`TextTable` holds text under headers. The functions below it make one of the DataFrames of a study.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from fedskip.config.study import short_names, value_text
from fedskip.records.table import Row, to_rows
from fedskip.report.results import ACCURACY, Metric, Results, SettingInfo
from fedskip.report.statistics import BASELINE, BETTER, COSTS, WORSE, leaders, sweeps

if TYPE_CHECKING:
    import pandas as pd

NONE = "–"
COLOURS = {BETTER: "green", WORSE: "red"}
GAP = 3  # of a column on a terminal: a space on both sides, and one to the next column
ENOUGH = 5  # seeds from which on the best are marked
NAMED = 3  # diverged runs that a note names
DIVERGED_HELP = (
    "What helps: a smaller local.lr, a local.clip (largest norm of a gradient; 10, say), "
    "or guard=nonfinite, which sets visits aside that end in NaN or infinity."
)

WORST = "the last model on the tenth of the clients where it is worst"
EXTRA = "after one more merge, where the period does not divide the rounds"
# column of summary.csv -> its header, its name in a sentence, and an explanation
WORDS = {
    "last": ("last", "last {}", "at the last evaluation"),
    "best": ("best", "best {}", "the best evaluation of a run, chosen on the test set"),
    "mean_tail": ("final", "final {}", "mean of the last 10 % of rounds"),
    "best_val": ("by validation", "{} by validation", "where the validation score was best"),
    "full_test": ("full test", "{} on all test samples", "the last model on all test samples"),
    "worst_clients": ("worst 10%", "{} of the worst clients", WORST),
    "merged": ("extra merge", "{} after an extra merge", EXTRA),
}


# --- numbers -------------------------------------------------------------------------------------------


def score(value: float | None, metric: Metric) -> str:
    """A share in per cent, any other metric as it is.

    >>> score(0.86307, ACCURACY), score(-0.86307, Metric("minus_squared_error")), score(None, ACCURACY)
    ('86.31', '-0.8631', '–')
    """
    if value is None or math.isnan(value):
        return NONE
    return f"{100 * value:.2f}" if metric.percent else f"{value:.4g}"


def spread(mean: float, deviation: float, metric: Metric) -> str:
    """A mean ± its standard deviation with as many decimals; without the deviation where that is NaN.

    >>> spread(0.6, 0.1, ACCURACY), spread(0.5, math.nan, ACCURACY), spread(2.61, 0.001, Metric("rmse"))
    ('60.00 ± 10.00', '50.00', '2.610 ± 0.001')
    """
    if math.isnan(mean) or math.isnan(deviation):
        return score(mean, metric)
    if metric.percent or not 1e-3 <= abs(mean) < 1e4:
        return f"{score(mean, metric)} ± {score(deviation, metric)}"
    decimals = 3 - math.floor(math.log10(abs(mean)))
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"


def difference(value: float, metric: Metric) -> str:
    """A difference of two scores, with its sign; of shares in points.

    >>> difference(0.0123, ACCURACY), difference(-0.5, Metric("rmse")), difference(-1e-9, ACCURACY)
    ('+1.23', '-0.5', '0.00')
    """
    if math.isnan(value):
        return NONE
    text = f"{100 * value:+.2f}" if metric.percent else f"{value:+.4g}"
    return text if text[1:].strip("0.") else text[1:]  # 0.00 has no sign


def count(number: object, what: str) -> str:
    """A number of things.

    >>> count(1, "seed"), count(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    shown = f"{number:,}" if isinstance(number, int) else str(number)
    return f"{shown} {what}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Names as part of a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def size(count: float) -> str:
    """Bytes in the largest unit that fits.

    >>> size(999), size(122_000), size(4.88e6)
    ('999 B', '122 kB', '4.88 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # what would be written 1e+03
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def clock(seconds: float | None) -> str:
    """Minutes and seconds, and hours where there are any.

    >>> clock(75.4), clock(3725), clock(None)
    ('1:15', '1:02:05', '–')
    """
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sentences(remarks: Iterable[str]) -> str:
    """Remarks, each as a sentence.

    >>> sentences(["reduced: 2 of 200 rounds", "not the paper's model"])
    "Reduced: 2 of 200 rounds. Not the paper's model."
    """
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in remarks)


# --- text under headers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextTable:
    """Text under headers; the first columns name a row. Too wide a table is split between columns."""

    title: str
    headers: Sequence[str]
    names: int  # columns that name a row
    rows: Sequence[Sequence[str]]  # an empty one separates groups
    best: Collection[tuple[int, int]] = ()  # row and column of the cells that are marked as best
    styles: Mapping[int, str] = field(default_factory=dict)  # of rows, on a terminal
    note: str = ""  # what the numbers are, in lines

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        for number, columns in enumerate(self.split(options.max_width)):
            title = None if number else self.title
            table = Table(
                box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left"
            )
            for i in columns:
                side, wrap = ("left", False) if i < self.names else ("right", True)
                table.add_column(self.headers[i], justify=side, no_wrap=wrap, overflow="fold")  # type: ignore[arg-type]
            for r, row in enumerate(self.rows):
                style = self.styles.get(r, "")
                if row:
                    best = [("bold green" if (r, i) in self.best else style) for i in columns]
                    table.add_row(*(Text(row[i], s) for i, s in zip(columns, best, strict=True)))
                else:
                    table.add_section()
            yield table

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

    def markdown(self) -> str:
        """For a README or an issue; the best are bold, and the note stands below."""

        def escape(content: str) -> str:
            return re.sub(r"([|*`])", r"\\\1", content).replace("<", "&lt;")

        rule = ["---"] * self.names + ["---:"] * (len(self.headers) - self.names)
        lines = [self.headers, rule, *filter(None, self.cells(escape, "**{}**"))]
        note = ["", self.note.replace("\n", " ")] if self.note else []
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *note, ""])

    def latex(self, label: str = "") -> str:
        """For a paper: a table with the rules of `booktabs`; the best are bold."""
        caption = ". ".join(filter(None, (self.title, self.note.replace("\n", " "))))
        columns = "l" * self.names + "r" * (len(self.headers) - self.names)
        lines = [[*map(_latex, self.headers)], [], *self.cells(_latex, r"\textbf{{{}}}")]
        body = "\n".join(" & ".join(line) + r" \\" if line else r"\midrule" for line in lines)
        named = f"\\label{{tab:{label}}}\n" if label else ""
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"\\caption{{{_latex(caption)}}}\n{named}\\begin{{tabular}}{{{columns}}}\n"
            f"\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
        )

    def html(self, mark: str = "class=best") -> str:
        """For a page or a notebook; the best have the attribute `mark`, and rows a class for their style."""
        heads = (f"<th{' class=name' * (i < self.names)}>" for i in range(len(self.headers)))
        head = "".join(map("{}{}</th>".format, heads, map(html.escape, self.headers)))
        body = ""
        for r, row in enumerate(self.rows):
            tags = ["th" if i < self.names else "td" for i in range(len(row))]
            marks = [f" {mark}" if (r, i) in self.best else "" for i in range(len(row))]
            cells = map("<{0}{1}>{2}</{0}>".format, tags, marks, map(html.escape, row))
            style = f' class="{self.styles[r]}"' if r in self.styles else ""
            body += f"<tr{style}>{''.join(cells)}</tr>" if row else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def cells(self, escape: Callable[[str], str], best: str) -> list[list[str]]:
        """The cells of all rows, escaped; `best` is how the best are written."""
        return [
            [(best if (r, i) in self.best else "{}").format(escape(c)) for i, c in enumerate(row)]
            for r, row in enumerate(self.rows)
        ]


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"<": "$<$", ">": "$>$", "[": "{[}"}
_SPECIAL |= {"±": r"$\pm$", "–": "--", "−": "$-$", "Δ": r"$\Delta$", "β": r"$\beta$"}


def _latex(content: str) -> str:
    signs = re.sub(r"(?<![\w.])-(?=\d)", "−", content)  # of a number, not of a name
    return "".join(_SPECIAL.get(sign, sign) for sign in signs)


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


# --- the closing table -------------------------------------------------------------------------------


def closing_table(results: Results, *, costs: bool = True, mark: str = "Bold") -> TextTable:
    """All scores over seeds, and their costs: the table that ends a study. `mark` is what marks the best."""
    settings, in_part = {one.name: one for one in results.settings}, evaluated_in_part(results)
    scores = [name for name in WORDS if results.table[name].notna().any()]
    if "full_test" in scores and not in_part:
        scores.remove("full_test")  # every evaluation was of all test samples
    # where there is a choice; `merged` has no winner: only methods in the middle of a period have it
    choices = [one.name for one in results.compared if len(results.labels(one.name)) > 1]
    seeds = {name: results.runs(name)["seed"].nunique() for name in choices}
    best = {
        (name, score): leaders(results, name, score)
        for name in choices
        for score in scores
        if seeds[name] >= ENOUGH and score != "merged"
    }
    last_rounds = results.history.groupby(["setting", "method"])["round"].max()
    rows: list[dict[str, str]] = []
    styles, marked, bracketed = {}, [], False
    # references come last
    for row in sorted(
        results.table.to_dict("records"), key=lambda r: settings[r["setting"]].reference
    ):
        setting, label = settings[row["setting"]], str(row["method"])
        cells = {WORDS[n][0]: spread(row[n], row[f"{n}_std"], setting.metric) for n in scores}
        if setting.reference:  # its bytes mean nothing
            styles[len(rows)] = "italic cyan"
            rows.append({"setting": "", "method": f"{setting.name} ({label})", **cells})
            continue
        at = int(last_rounds.get((setting.name, label), setting.rounds))
        if "last" in scores and not math.isnan(row["last"]) and at < setting.rounds:
            cells["last"], bracketed = f"{cells['last']} ({at})", True
        if costs:
            cells |= {"bytes": size(row["bytes_total"]), "merges": f"{row['merges']:.0f}"}
        if row["diverged"]:
            styles[len(rows)] = "red"
            cells["diverged"] = f"{row['diverged']} of {row['seeds']}"
        marked += [
            (len(rows), WORDS[n][0]) for n in scores if label in best.get((setting.name, n), ())
        ]
        rows.append({"setting": setting.name, "method": label, **cells})
    by = {setting.metric.with_unit(" in %") for setting in results.settings if setting.by}
    title = f"{results.name}, by {' and '.join(sorted(by))}" if by else results.name
    notes = [] if results.finished else ["Not finished: these are the numbers so far."]
    notes += [caption(results)]
    if scores:
        notes += ["; ".join(f"{WORDS[name][0]}: {WORDS[name][2]}" for name in scores) + "."]
    if any(n >= ENOUGH for n in seeds.values()):
        notes += [f"{mark}: no significant difference from the best (95 % CI includes 0)."]
    if any(n < ENOUGH for n in seeds.values()):
        notes += [f"Fewer than five seeds ({min(seeds.values())} here): the best are not marked."]
    if bracketed:
        notes += ["In brackets: the round of the last evaluation, where it is not the last round."]
    early = results.summary[results.summary["ended"] != ""]
    if len(early):
        ends = sorted({early["rounds"].min(), early["rounds"].max()})
        span = f"round{'s' * (len(ends) > 1)} {' to '.join(map(str, ends))}"
        why = " or ".join(sorted(early["ended"].unique()))
        notes += [f"{len(early)} of {len(results.summary)} runs ended early, at {span} ({why})."]
    note = "\n".join([*notes, *divergence_notes(results)])
    return _table(title, rows, len(results.compared) > 1, note, marked, styles)


def divergence_notes(results: Results) -> Iterator[str]:
    """Runs that diverged, and visits that were set aside."""
    runs = [f"{row['run']} {row['where']}" for row in diverged_runs(results)]
    if runs:
        more = [f"and {len(runs) - NAMED} more"] if len(runs) > NAMED else []
        yield f"Diverged: {'; '.join([*runs[:NAMED], *more])}. {DIVERGED_HELP}"
    for setting in results.settings:
        groups = results.runs(setting.name).groupby("method", sort=False)
        counts = groups[["set_aside", "rounds"]].sum().astype(int)
        aside = [
            f"{label} {row['set_aside']:,} of {row['rounds'] * int(setting.keys['cohort']):,}"
            for label, row in counts[counts["set_aside"] > 0].iterrows()
        ]
        if aside:
            name = f" of {setting.name}" if len(results.settings) > 1 else ""
            yield f"Visits{name} set aside, as they ended in NaN or infinity: {', '.join(aside)}."


def diverged_runs(results: Results) -> list[Row]:
    """The runs that diverged; `where` says in which visit."""
    rows = to_rows(results.summary[results.summary["diverged"]])
    visit = ("broke_round", "broke_client", "broke_slot")
    return [row | {"where": diverged_where(*(row.get(name) for name in visit))} for row in rows]


def diverged_where(round: int | None, client: int | None, slot: int | None) -> str:
    """The visit in which a run diverged.

    >>> diverged_where(3, 17, 1)
    'in round 3, in slot 1 at client 17'
    """
    if round is None:
        return "although the losses of all visits were finite"
    place = f"in slot {slot} " if slot is not None else ""
    return f"in round {round}, {place}at client {client}"


def caption(results: Results) -> str:
    """What was measured, on what, and how often."""
    start = f"{results.compared[0].title}. " if len(results.compared) == 1 else ""
    metrics = " and ".join(dict.fromkeys(s.metric.with_unit(" in %") for s in results.settings))
    rows = results.summary.groupby(["setting", "method"], sort=False)["seed"]
    seeds = rows.agg(lambda mine: ", ".join(map(str, sorted(mine))))
    if seeds.nunique() == 1:  # else each setting, or each method, is named
        which, number = seeds.iloc[0], seeds.iloc[0].count(",") + 1
        listing = f" ({which})" if number <= 10 else ""
        over = f"over {number} seeds{listing}" if number > 1 else f"seed {which}"
    else:
        each = [
            f"{setting} {mine.iloc[0]}" if mine.nunique() == 1
            else "; ".join(f"{setting} {method} {own}" for (_, method), own in mine.items())
            for setting, mine in seeds.groupby(level=0, sort=False)
        ]  # fmt: skip
        over = f"over seeds ({'; '.join(each)})"
    spread = "mean ± standard deviation " if over.startswith("over") else ""
    sizes = " or ".join(f"{size:,}" for size in evaluated_in_part(results))
    part = f", {sizes} of them during training" if sizes else ""
    remarks = "".join(f"; {remark}" for remark in results.remarks)
    tested = test_samples(results.settings)
    return f"{start}Test {metrics}, {spread}{over}; {tested}{part}; bytes and merges of one run{remarks}."


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
    if not sizes:  # clients of a federation say it at the end
        return "the test samples of all clients"
    if len(set(sizes.values())) == 1:
        return f"{sizes.popitem()[1]} test samples"
    return f"test samples: {', '.join(f'{name} {size}' for name, size in sizes.items())}"


def closing_text(results: Results, width: int = 120) -> str:
    """The closing table and its notes as plain text, where a star marks the best."""
    table = closing_table(results, mark="Star")
    columns = {column for _, column in table.best}
    rows = [
        [cell + " " * (i in columns and cell[-1:] != "*") for i, cell in enumerate(row)]
        for row in table.cells(str, "{}*")
    ]
    starred = replace(table, rows=rows, best=(), styles={})
    out = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    out.print(starred, table.note, sep="\n", markup=False, highlight=False, emoji=False)
    content: str = out.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in content.strip("\n").splitlines())


def closing_html(results: Results) -> str:
    """The same for a notebook: without colours and scripts."""
    table = closing_table(results)
    below = "".join(f"<div>{html.escape(note)}</div>" for note in table.note.splitlines())
    shown = table.html("style=font-weight:bold")
    return f"<b>{html.escape(results.name)}</b>{shown}{below}"


# --- differences, targets, best values ---------------------------------------------------------------


def comparison_table(
    results: Results, comparison: pd.DataFrame, baseline: str, score: str
) -> TextTable:
    """Differences from the baseline, their intervals, wins, losses and ranks."""
    metrics = {setting.name: setting.metric for setting in results.compared}
    rows: list[dict[str, str]] = []
    styles: dict[int, str] = {}
    for i, row in enumerate(comparison.to_dict("records")):
        metric, is_baseline = metrics.get(row["setting"], ACCURACY), row["verdict"] == BASELINE
        apart, low, high = (difference(row[k], metric) for k in ("difference", "low", "high"))
        cells = {
            "difference": apart,
            "95% CI": NONE if math.isnan(row["low"]) else f"{low} to {high}",
            "won": f"{row['wins']}",
            "lost": f"{row['losses']}",
        }
        cells = dict.fromkeys(cells, NONE) if is_baseline else cells
        cells["rank"] = NONE if math.isnan(row["rank"]) else f"{row['rank']:.2f}"
        rows.append({name: row[name] for name in ("setting", "method")} | cells)
        rows[i]["verdict"] = row["verdict"]
        styles |= {i: COLOURS[row["verdict"]]} if row["verdict"] in COLOURS else {}
    _, name, meaning = WORDS[score]
    words = " and ".join(dict.fromkeys(name.format(one.words) for one in metrics.values()))
    note = (
        f"differences from {baseline} in {words} ({meaning}) on the test set, seed by seed; "
        "95 % CI: confidence interval by Student's t; seeds won and lost; mean rank, 1 is the best"
    )
    title = f"{words[0].upper()}{words[1:]}, compared with {baseline}"
    note = sentences([note, *results.remarks])
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
            show = size if name == "bytes" else "{:.0f}".format
            within = "" if math.isnan(deviation) else f" ± {show(deviation)}"
            header = "sent, both ways" if name == "bytes" else name
            record[header] = NONE if math.isnan(mean) else show(mean) + within
        rows.append(record)
    goals, title = {row["target"] for row in rows}, "To reach the target"
    if len(goals) == 1:
        title = f"To reach {goals.pop()}"
        rows = [{k: v for k, v in row.items() if k != "target"} for row in rows]
    note = "until a method first reaches the target, seed by seed; mean ± standard deviation over the seeds that do"
    return _table(title, rows, len(metrics) > 1, sentences([note, *results.remarks]))


def target_name(target: float | str, metric: Metric) -> str:
    """A target in words.

    >>> target_name("FedAvg", ACCURACY), target_name(0.68, ACCURACY)
    ("FedAvg's best accuracy", '68.00 %')
    """
    if isinstance(target, str):
        return f"{target}'s best {metric.words}"
    return score(target, metric) + " %" * metric.percent


def best_values_table(results: Results) -> TextTable:
    """The best values of every swept key, by method."""
    grids = {sweep.name: sweep for sweep in sweeps(results)}
    keys = short_names(dict.fromkeys(key for sweep in grids.values() for key in sweep.keys))
    rows = []
    for row in results.chosen.to_dict("records"):
        sweep, done = grids[row["sweep"]], isinstance(row["setting"], str)
        first, record = sweep.settings[0], {"sweep": sweep.name, "method": row["method"]}
        for key, short in keys.items():
            value = value_text(row[key]) if done else NONE
            record[short] = value if key in sweep.keys else ""
        validation = row["chosen_by"] if row["by"] == "validation" else math.nan
        record["validation"] = score(validation, first.metrics[0])
        test = spread(row["score"], row["score_std"], first.metric)
        rows.append(record | {"test": test if done else "diverged or not done"})
    how = {
        "validation": "Chosen for each method by the best validation score, mean over seeds; "
        "the test score is that of the round where it was best.",
        "test": "Chosen on the test set (last 10 % of rounds), so these numbers are optimistic: "
        "with validation: 0.1 a study chooses on samples of their own.",
    }
    lines = [words for by, words in how.items() if by in {sweep.by for sweep in grids.values()}]
    note = " ".join(filter(None, [*lines, sentences(results.remarks)]))
    return _table("Best values", rows, len(grids) > 1, note)
