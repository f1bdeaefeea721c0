"""What to know before one relies on the numbers: what is odd about a setting, and scores like guesses."""

from __future__ import annotations

from statistics import fmean

from fedskip.report import units
from fedskip.report.looked import Looked
from fedskip.report.recorded import About

NEAR = 1e-9  # scores that differ by less are equal


def warnings(results: Looked) -> list[str]:
    """What was odd about each setting, and which methods end no better than a guess."""
    several, found = len(results.settings) > 1, []
    for setting in results.settings:
        start = f"{setting.name}: " if several else ""
        found += [f"{start}{_sentence(words)}" for words in setting.warned]
        found += [f"{start}{_sentence(words)}" for words in _guessed(results, setting)]
    return found


def _guessed(results: Looked, setting: About) -> list[str]:
    """The methods of which runs end no better than one answer for all samples would."""
    by_seed, always = setting.guessing.get("scores") or {}, setting.guessing.get("always")
    if not by_seed or setting.by:  # it is of the headline
        return []
    guess, metric, found = fmean(by_seed.values()), setting.metric, []
    for label in results.labels(setting.name):
        scores = results.scores(setting.name, label, "last")
        known = {seed: score for seed, score in scores.items() if score is not None}
        sign = 1 if metric.higher else -1
        poor = [score for seed, score in known.items() if sign * (score - by_seed.get(seed, guess)) <= NEAR]
        if poor:
            some = "" if len(poor) == len(known) else f", {len(poor)} of {len(known)} runs"
            found.append(f"{label} ({units.score(fmean(poor), metric)}{some})")
    verb = "is" if len(found) == 1 else "are"
    least = units.score(guess, metric) + " %" * metric.percent
    words = (
        f"{units.listed(found)} {verb} no better than always answering {always} ({least})" if found else ""
    )
    return [words] if words else []


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}{'' if words[-1] in '.?!' else '.'}"
