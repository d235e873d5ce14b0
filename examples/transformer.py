"""A small character transformer, trained by FreeBORAT: no learning rate, no schedule, no warm-up.

python examples/transformer.py [--steps 500] [--checkpoint transformer.pt]

Start it again to continue from the checkpoint. The comments mark three pitfalls of an optimizer whose result is an
average: where to evaluate the model, where to save it, and what to save in order to resume.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn

from borat import FreeBORAT

CONTEXT = 64


class Transformer(nn.Module):
    def __init__(self, characters, width=64, layers=2):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        nn.init.zeros_(self.head.weight)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text):
        x = self.characters(text) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


def batch(text, size, generator):
    """Return random excerpts of the text, and the same excerpts shifted by one character."""
    starts = torch.randint(len(text) - CONTEXT, (size, 1), generator=generator)
    excerpts = text[starts + torch.arange(CONTEXT + 1)]
    return excerpts[:, :-1], excerpts[:, 1:]


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model, optimizer, text):
    # Pitfall 1: during training, the weights are at the point where gradients are measured, which is a worse model.
    # Evaluate at the average. Models with BatchNorm layers (unlike this one) need borat.batchnorm.update_statistics.
    model.eval()
    optimizer.eval()
    loss = loss_of(model, *batch(text, 256, torch.Generator().manual_seed(0)))
    model.train()
    optimizer.train()  # move back, bit for bit: evaluation does not affect training
    return loss.item()


def save(path, model, optimizer, generator, step):
    # Pitfall 2: save at the average as well, so that "model" is the result and can be used without the optimizer.
    # Pitfall 3: save the optimizer's state in order to resume. It records that the weights are at the average, so both
    # state dicts must be taken between the same eval() and train().
    optimizer.eval()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": generator.get_state()}
    part = path.with_suffix(".part")
    torch.save({**state, "step": step}, part)
    part.replace(path)
    optimizer.train()


def load(path, model, optimizer, generator):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["random"])
    optimizer.train()  # the checkpoint was saved at the average
    return state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--checkpoint", type=Path, default=Path("transformer.pt"))
    options = parser.parse_args()

    everything = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: index for index, character in enumerate(sorted(set(everything)))}
    text = torch.tensor([alphabet[character] for character in everything])
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]

    torch.manual_seed(0)
    model, generator = Transformer(len(alphabet)), torch.Generator().manual_seed(1)
    optimizer = FreeBORAT(model.parameters())
    first = load(options.checkpoint, model, optimizer, generator) if options.checkpoint.exists() else 0
    print(f"step {first}: test loss {evaluate(model, optimizer, test):.4f}")

    for step in range(first + 1, options.steps + 1):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(train, 16, generator))
        loss.backward()
        optimizer.step(loss=loss)  # pass the loss
        if step % 100 == 0 or step == options.steps:
            print(f"step {step}: test loss {evaluate(model, optimizer, test):.4f}", flush=True)
            save(options.checkpoint, model, optimizer, generator, step)


if __name__ == "__main__":
    main()
