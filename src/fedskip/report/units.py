"""Metrics, and numbers as text: scores, differences, bytes, times."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = "–"
_WORDS = {
    "macro_f1": "macro F1", "auroc": "AUROC", "r2": "R²", "mae": "mean absolute error", "rmse": "RMSE",
}  # fmt: skip


class Metric(NamedTuple):
    """A metric: its name, its unit, and which way is better."""

    name: str
    percent: bool = False  # a share from 0 to 1, shown in per cent
    higher: bool = True  # is better

    @property
    def words(self) -> str:
        """Its name as text; for a custom metric, the name of its function.

        >>> Metric("label_accuracy").words, Metric("r2").words, Metric("python:mine.top_5").words
        ('label accuracy', 'R²', 'top 5')
        """
        return _WORDS.get(self.short) or self.short.replace("_", " ")

    @property
    def short(self) -> str:
        """Its name without the module."""
        return self.name.replace(":", ".").rpartition(".")[2]

    @property
    def column(self) -> str:
        """Its column in tables where it is not the headline."""
        return f"x_{self.name}"

    @property
    def factor(self) -> float:
        """The factor from stored to shown numbers."""
        return 100.0 if self.percent else 1.0

    @property
    def best(self) -> str:
        """The word for the best of several.

        >>> ACCURACY.best, Metric("rmse", higher=False).best
        ('highest', 'lowest')
        """
        return "highest" if self.higher else "lowest"

    def with_unit(self, sign: str = " (%)") -> str:
        """Its name with its unit.

        >>> ACCURACY.with_unit(), ACCURACY.with_unit(" in %"), Metric("r2").with_unit()
        ('accuracy (%)', 'accuracy in %', 'R²')
        """
        return self.words + sign * self.percent


def best(metrics: Iterable[Metric]) -> str:
    """The word for the best by any of these.

    >>> best([ACCURACY]), best([ACCURACY, Metric("rmse", higher=False)])
    ('highest', 'best')
    """
    found = {metric.best for metric in metrics}
    return found.pop() if len(found) == 1 else "best"


ACCURACY = Metric("accuracy", percent=True)


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
