"""The federated loop. Everything that trains goes through it: studies, benchmarks, the contract, tests."""

from collections.abc import Iterator, Sequence

from fedskip.engine.task import Engine
from fedskip.federation.run import Run
from fedskip.federation.server import Outcome


def train(engine: Engine, runs: Sequence[Run], until: int) -> Iterator[tuple[Run, Outcome]]:
    """Train runs side by side up to a round.

    A run says which visits may start: slots, clients, models. The engine trains the visits of all runs
    together until some of them end. Their run takes those in, and when all slots have met it merges them.

    Args:
        engine: trains the visits; its task is that of the runs.
        runs: they may have different methods and seeds.
        until: the last round. Call again with a later one to go on.

    Yields:
        A run and an outcome, whenever a run has something to evaluate.
    """
    with engine.open():
        while (jobs := [job for run in runs for job in run.ready(until)]) or engine.busy:
            engine.join(jobs)
            for trained in engine.advance():
                run: Run = trained.job.run
                outcome = run.done(trained)
                if outcome is not None:
                    yield run, outcome
