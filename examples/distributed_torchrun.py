"""DDP and FSDP on several processes.

torchrun --nproc_per_node=2 examples/distributed_torchrun.py [--fsdp]

The optimizer averages the loss over the processes, as DDP and FSDP average the gradients, so all take the same step.
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from borat import BORAT
from borat.constraints import L2Ball


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true", help="shard the model instead of copying it")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)  # every process starts from the same model
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = fully_shard(model) if options.fsdp else DistributedDataParallel(model)
    optimizer = BORAT(model.parameters(), lr=1.0, bundle_size=3, constraint=L2Ball(radius=30))

    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    sampler = DistributedSampler(data)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(loss=loss)  # each process passes the loss of its own part of the batch

    optimizer.eval()
    with torch.no_grad():
        accuracy = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, accuracy on the training data {100 * accuracy:.1f} %")
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch aborts if the interpreter exits while a gloo thread still releases a tensor


if __name__ == "__main__":
    main()
