"""A federation without a study: data with clients, a model, some methods, and the loop that trains them."""

import numpy as np
import torch
from torch import nn

from fedskip import (
    Arrays,
    Evaluator,
    FedAvg,
    Local,
    Loop,
    Scaffold,
    make_run,
    make_task,
    partition,
    train,
)

x = torch.randn(6000, 10, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()  # three classes
clients = partition("dirichlet", np.arange(5000), y.numpy(), clients=20, seed=0, beta=0.3)
test = np.arange(5000, 6000)

task = make_task(nn.Linear(10, 3), Arrays(x, y), Local(lr=0.1, batch=8, epochs=2))
methods = [FedAvg(), FedAvg(period=4), Scaffold()]  # the second one is FedSkip
runs = [make_run(task, clients, method, cohort=5) for method in methods]

evaluate = Evaluator(task)
for run, outcome in train(Loop(task), runs, until=20):
    [accuracy] = evaluate(outcome.models, test).metric
    if outcome.round == 20:
        print(f"{run.name:15} {accuracy:.1%}, {outcome.merges} merges")
