"""The results of a study on the terminal: its table, verdicts, and where they are."""

from fedskip.report.findings import Findings
from fedskip.report.progress import console
from fedskip.report.results import Results


def close(results: Results) -> None:
    """Print the results of a study, and its folder."""
    to = console()
    findings = Findings(results)
    wanted = any("target" in setting.keys for setting in results.compared)
    for part in (*findings.closing_parts(), *findings.sentences(targets=wanted)):
        to.print(part)
    to.print(f"\n{results.out}", soft_wrap=True)
