"""A sweep over your own training function: it runs in parallel, and resumes when you start it again.

python examples/sweep_own_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from borat import BORAT
from borat.lab import sweep


def train(lr, bundle_size, epochs=3):
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = BORAT(model.parameters(), lr=lr, bundle_size=bundle_size)
    for _ in range(epochs):
        for start in range(0, 1400, 32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
            loss.backward()
            optimizer.step(loss=loss)
    optimizer.eval()
    return {"accuracy": (model(x[1400:]).argmax(1) == y[1400:]).float().mean()}


if __name__ == "__main__":  # the worker processes import this file
    for outcome in sweep(train, {"bundle_size": [1, 3], "lr": [0.1, 1.0, 10.0]}, folder="sweep"):
        print(outcome.status, outcome.arguments, f"accuracy {outcome.result['accuracy']:.1%}")
