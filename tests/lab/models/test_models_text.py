"""Models of text: parameter counts, and causality."""

from __future__ import annotations

import math

import pytest
import torch

from borat.lab.models import make_model


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("layers", "width", "window", "classes"), [(2, 64, 64, 103), (1, 24, 5, 7), (3, 96, 16, 50)])
def test_transformers_have_the_published_size(layers, width, window, classes):
    """GPT-2's count, 12 w² + 13 w per block, and a separate classifier."""
    model = make_model(f"gpt-{layers}-{width}", input_shape=(window,), classes=classes)
    embeddings = (classes + window) * width
    assert count(model) == embeddings + layers * (12 * width**2 + 13 * width) + 2 * width + (width + 1) * classes


def test_ngram_parameters():
    model = make_model("ngram-6-96", input_shape=(64,), classes=103)
    assert count(model) == 103 * 16 + (6 * 16 + 1) * 96 + (96 + 1) * 103


@pytest.mark.parametrize(("name", "reach"), [("gpt-2-64", 12), ("gpt-1-24", 12), ("ngram-4-8", 4), ("ngram-1-8", 1)])
def test_scores_depend_on_earlier_characters_only(name, reach):
    model = make_model(name, input_shape=(12,), classes=5).double().eval()
    text = torch.randint(5, (3, 12))
    scores = model(text)
    assert scores.shape == (3, 12, 5)
    for place in range(12):
        changed = text.clone()
        changed[:, place] = (text[:, place] + 1) % 5
        differs = ((model(changed) - scores).abs() > 1e-9).any(2).all(0)
        assert differs.tolist() == [place <= other < place + reach for other in range(12)]


def test_attention_is_the_softmax_of_products():
    """Compare with the formula, head by head."""
    block = make_model("gpt-1-64", input_shape=(6,), classes=5).double().blocks[0].attention
    x = torch.randn(2, 6, 64, dtype=torch.float64)
    queries, keys, values = (part.unflatten(2, (2, 32)) for part in block.qkv(x).chunk(3, 2))
    products = torch.einsum("bqhc,bkhc->bhqk", queries, keys) / 32**0.5
    products = products.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    expected = torch.einsum("bhqk,bkhc->bqhc", products.softmax(3), values).flatten(2)
    torch.testing.assert_close(block(x), block.project(expected))


def test_a_new_model_guesses():
    """The initial loss is that of guessing."""
    model = make_model("gpt-2-64", input_shape=(32,), classes=50)
    text = torch.randint(50, (64, 33))
    loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(50.0), abs=0.02)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gpt-0-64", (8,), "unknown model 'gpt-0-64'; did you mean 'gpt-2-64'"),
        ("ngram-0-8", (8,), "unknown model 'ngram-0-8'"),
        ("gpt-2-64", (1, 8, 8), r"input_shape must be \(characters\), got"),
        ("gpt-2", (8,), "did you mean 'gpt-2-64'"),
        ("ngram", (8,), "did you mean 'ngram-6-96'"),
    ],
)
def test_bad_arguments(name, shape, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, input_shape=shape, classes=5)
