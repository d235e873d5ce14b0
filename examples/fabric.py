"""Lightning Fabric: call observe, eval and train on the optimizer that you created, step on Fabric's wrapper.

python examples/fabric.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from borat import FreeBORAT


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    train, test = random_split(digits, [1400, 397])

    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    borat = FreeBORAT(net.parameters())
    model, optimizer = fabric.setup(net, borat)
    batches = fabric.setup_dataloaders(DataLoader(train, 32, shuffle=True))

    for _ in range(5):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            borat.observe(loss)  # or optimizer.step(lambda: loss), except with 16-mixed, which forbids closures
            optimizer.step()

    borat.eval()  # on the optimizer itself: the wrapper forwards only step()
    x, y = test[:]
    print(f"test accuracy {(model(x).argmax(1) == y).float().mean():.1%}")
    borat.train()


if __name__ == "__main__":
    main()
