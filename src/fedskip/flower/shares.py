"""A data set divided over the clients of a federation that is tried out on one machine."""

import numpy as np

from fedskip.data.division import divide
from fedskip.data.pools import Pools
from fedskip.flower.plan import Plan
from fedskip.input.errors import require


def shares(plan: Plan) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What each client trains on and tests on, as the study divides it; together they test on all of it.

    Test samples belong to the client that has the others of their owner; where nobody owns them they are
    dealt out evenly.
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
    test = division.evaluated
    if dataset.owner is None or (dataset.owner[test] < 0).any():
        tests = np.array_split(test, len(names))
    else:
        holder = np.zeros(dataset.owner.max() + 1, np.int64)  # of an owner's samples, the last who has one
        for client in range(found):
            holder[dataset.owner[division.clients[client]]] = client
        tests = [test[holder[dataset.owner[test]] == client] for client in range(found)]
    return {name: (division.clients[i], tests[i]) for i, name in enumerate(names)}
