"""Lightning's Trainer: a callback passes the loss to FreeBORAT and moves the model to the result for validation.

python examples/lightning_trainer.py
"""

import tempfile

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from borat import FreeBORAT
from borat.integrations.lightning import BoratCallback


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return FreeBORAT(self.parameters())


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    train, validation = random_split(digits, [1400, 397])
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            callbacks=[BoratCallback()],
            max_epochs=5,
            accumulate_grad_batches=2,
            precision="bf16-mixed",
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Digits(), DataLoader(train, 32, shuffle=True), DataLoader(validation, 397))
    print(f"validation accuracy {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
