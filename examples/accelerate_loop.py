"""accelerate, with gradient accumulation: pass each micro-batch's part of the loss to the optimizer.

python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from borat import FreeBORAT


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    train, test = random_split(digits, [1400, 397])

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    borat = FreeBORAT(net.parameters())
    model, optimizer, batches = accelerator.prepare(net, borat, DataLoader(train, 32, shuffle=True))

    for _ in range(5):
        for x, y in batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                borat.observe(loss / accelerator.gradient_accumulation_steps)
                optimizer.step()  # without accumulation, optimizer.step(lambda: loss) works as well
                optimizer.zero_grad()

    optimizer.eval()
    x, y = test[:]
    print(f"test accuracy {(model(x).argmax(1) == y).float().mean():.1%}")
    optimizer.train()


if __name__ == "__main__":
    main()
