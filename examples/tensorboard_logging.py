"""Log the optimizer's updates to TensorBoard.

python examples/tensorboard_logging.py && tensorboard --logdir runs
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from borat import BORAT
from borat.monitor import Monitor


def main(folder):
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = BORAT(model.parameters(), lr=1.0, bundle_size=3)
    with SummaryWriter(folder) as writer:
        monitor = Monitor(optimizer, writer, every=5)
        for _ in range(5):
            for x, y in DataLoader(digits, 32, shuffle=True):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step(loss=loss)
    kinds = ", ".join(f"{count} {kind}" for kind, count in monitor.kinds.most_common())
    print(f"{monitor.steps} steps, {monitor.kinds.total()} updates: {kinds}")
    print(f"tensorboard --logdir {folder}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
