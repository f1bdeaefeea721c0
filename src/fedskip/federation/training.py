"""The federated loop. Everything that trains goes through it: studies, benchmarks, the contract, tests."""

from collections.abc import Iterator, Sequence

from fedskip.engine.task import Engine
from fedskip.federation.run import Run
from fedskip.federation.server import Outcome


def train(engine: Engine, runs: Sequence[Run], until: int) -> Iterator[tuple[Run, Outcome]]:
    """Train runs side by side up to round `until`; gives what there is to evaluate, as it comes.

    A run says which visits may start: slots, clients, models. The engine trains the visits of all runs
    together until some of them end. Their run takes those in, and when all slots have met it merges them.
    """
    with engine.open():
        while (jobs := [job for run in runs for job in run.ready(until)]) or engine.busy:
            engine.join(jobs)
            for trained in engine.advance():
                run: Run = trained.job.run
                outcome = run.done(trained)
                if outcome is not None:
                    yield run, outcome
