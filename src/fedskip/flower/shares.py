"""A data set divided over the clients of a federation that is tried out on one machine."""

import numpy as np

from fedskip import rng
from fedskip.data.division import Division, divide
from fedskip.data.pools import Pools
from fedskip.flower.plan import Plan
from fedskip.input.errors import require


def shares(plan: Plan) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each client trains on and tests on, as the study divides it; together they test on all of it.

    Where all samples of an owner are at one client, so are its test samples; else those are dealt evenly.
    """
    setting, names = plan.setting, plan.agreement.clients
    dataset = Pools().get(setting.data).dataset
    division = divide(
        dataset, setting.division_seed(plan.seed), partition=setting.partition, clients=setting.clients,
        cohort=setting.cohort, batch=setting.local.fewest, validation=0.0, eval_samples=setting.eval_samples,
        drop_small=setting.local.small_clients == "drop",
    )  # fmt: skip
    found = len(division.clients)
    fix = "divide the data by partition.kind=dirichlet or iid, which make as many clients as are asked for"
    require(
        "partition", found == len(names), f"must make {len(names)} clients, one for each node", found, fix
    )
    tests = _tests(dataset.owner, division)
    return {name: (division.clients[i], tests[i]) for i, name in enumerate(names)}


def _tests(owner: np.ndarray | None, division: Division) -> list[np.ndarray]:
    """The test samples of each client."""
    test, clients = division.evaluated, len(division.clients)
    if owner is not None and (owner[test] >= 0).all():
        owners = [np.unique(owner[division.clients[client]]) for client in range(clients)]
        if len(np.unique(np.concatenate(owners))) == sum(map(len, owners)):
            return [test[np.isin(owner[test], mine)] for mine in owners]
    return np.array_split(rng.stream("sites", len(test)).permutation(test), clients)
