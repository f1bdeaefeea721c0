"""Reasons for caution: what the checks before training found, and methods no better than a guess."""

from __future__ import annotations

from fedskip.report import units
from fedskip.report.results import Results, SettingInfo

NEAR = 1e-9  # scores that differ by less are equal


def warnings(results: Results) -> list[str]:
    """The warnings of each setting, and the methods that end no better than a guess."""
    several, found = len(results.settings) > 1, []
    for setting in results.settings:
        start = f"{setting.name}: " if several else ""
        for text in (*setting.warnings, *_no_better_than_a_guess(results, setting)):
            end = "" if text[-1] in ".?!" else "."
            found.append(f"{start}{text[0].upper()}{text[1:]}{end}")
    return found


def _no_better_than_a_guess(results: Results, setting: SettingInfo) -> list[str]:
    """The methods with runs that end no better than one answer for all samples."""
    by_seed, answer = setting.guessing.get("scores") or {}, setting.guessing.get("always")
    if not by_seed or setting.by:  # the guess is of the headline
        return []
    metric, poor = setting.metric, []
    guess = sum(by_seed.values()) / len(by_seed)
    sign = 1 if metric.higher else -1
    for label in results.labels(setting.name):
        scores = results.scores(setting.name, label, "last").dropna()
        guesses = scores.index.to_series().map(lambda seed: by_seed.get(seed, guess))
        low = scores[sign * (scores - guesses) <= NEAR]
        if len(low):
            some = "" if len(low) == len(scores) else f", {len(low)} of {len(scores)} runs"
            poor.append(f"{label} ({units.score(low.mean(), metric)}{some})")
    if not poor:
        return []
    verb = "is" if len(poor) == 1 else "are"
    several = "on average " if len(set(by_seed.values())) > 1 else ""
    least = several + units.score(guess, metric) + " %" * metric.percent
    return [f"{units.listed(poor)} {verb} no better than always answering {answer} ({least})"]
