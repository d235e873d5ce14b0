"""The lab's models: published sizes, and properties from the papers."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import nn

from borat import ALIG
from borat.lab.data.synthetic import repeat_copy
from borat.lab.models import FAMILIES, dnc, make_model
from borat.lab.models.convolutional import DenseLayer
from borat.lab.training.objective import bits_loss

CIFAR, DIGITS, GREY = (3, 32, 32), (1, 8, 8), (1, 28, 28)


def on_meta(name, **arguments):
    with torch.device("meta"):
        return make_model(name, **arguments)


def size(model):
    return sum(p.numel() for p in model.parameters())


def shapes(model):
    return Counter(tuple(p.shape) for p in model.parameters())


# The parameter shapes of the papers, written out without the models


def wide_resnet(depth: int = 40, width: int = 4, classes: int = 100) -> list:
    """Return the parameter shapes of a WRN-depth-width for 32x32 images."""
    shapes = [(16, 3, 3, 3)]
    channels = 16
    for out in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            shapes += [(channels,), (channels,), (out, channels, 3, 3), (out,), (out,), (out, out, 3, 3)]
            if channels != out:
                shapes.append((out, channels, 1, 1))
            channels = out
    return [*shapes, (channels,), (channels,), (classes, channels), (classes,)]


def resnet18(classes: int = 1000) -> list:
    """Return the parameter shapes of a ResNet-18 for ImageNet."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(out, channels, 3, 3), (out,), (out,), (out, out, 3, 3), (out,), (out,)]
            if block == 0 and channels != out:
                shapes += [(out, channels, 1, 1), (out,), (out,)]
            channels = out
    return [*shapes, (classes, channels), (classes,)]


def bi_lstm(embedding: int = 300, hidden: int = 2048, fully_connected: int = 512) -> list:
    """Return the parameter shapes of InferSent: a Bi-LSTM encoder and a classifier for pairs of sentences."""
    gates = 4 * hidden
    direction = [(gates, embedding), (gates, hidden), (gates,), (gates,)]
    features = 4 * 2 * hidden
    layers = []
    for n_in, n_out in ((features, fully_connected), (fully_connected, fully_connected), (fully_connected, 3)):
        layers += [(n_out, n_in), (n_out,)]
    return [*direction, *direction, *layers]


def small_mlp(widths: tuple = (64, 128, 80, 10)) -> list:
    """Return the parameter shapes of a multi-layer perceptron for scikit-learn's digits."""
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))]


def randomised(model):
    """Move batch statistics and parameters away from their initial values, so that each matters in a test."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(0.0, 0.1)
                module.running_var.uniform_(0.5, 2.0)
    return model


SMALL = {
    "wrn-10-1": {"input_shape": DIGITS},
    "densenet-bc-10-4": {"input_shape": DIGITS},
    "resnet-18": {"input_shape": CIFAR},
    "mlp-12-9": {"input_shape": DIGITS},
    "mlp-11": {"input_shape": (7,), "batch_norm": True},
    "cnn": {"input_shape": DIGITS},
    "logistic": {"input_shape": DIGITS},
}


# Sizes


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("wrn-16-4", 10, 2_748_890),
        ("wrn-40-4", 10, 8_949_210),
        ("wrn-40-4", 100, 8_972_340),
        ("wrn-28-10", 10, 36_479_194),
        ("densenet-bc-100-12", 10, 769_162),
        ("densenet-bc-250-24", 10, 15_324_406),
        ("densenet-bc-190-40", 10, 25_624_430),
        ("densenet-bc-40-40", 10, 1_901_930),
        ("densenet-bc-40-40", 100, 1_941_620),
    ],
)
def test_published_sizes(name, classes, parameters):
    assert size(on_meta(name, input_shape=CIFAR, classes=classes)) == parameters


def test_published_size_of_resnet_18():
    model = on_meta("resnet-18", input_shape=(3, 224, 224), classes=1000)
    assert size(model) == 11_689_512
    assert shapes(model) == Counter(resnet18())


@pytest.mark.parametrize(("depth", "width", "classes"), [(40, 4, 100), (16, 4, 10), (16, 1, 10), (10, 2, 7)])
def test_wide_resnets_have_the_published_shapes(depth, width, classes):
    model = on_meta(f"wrn-{depth}-{width}", input_shape=CIFAR, classes=classes)
    assert shapes(model) == Counter(wide_resnet(depth, width, classes))


def test_infersent_has_the_published_shapes():
    model = on_meta("infersent", input_shape=(1000, 300), classes=3)
    assert size(model) == 47_155_715
    assert shapes(model) == Counter(bi_lstm())


def test_small_sizes():
    assert shapes(on_meta("mlp-128-80", input_shape=DIGITS, classes=10)) == Counter(small_mlp())
    assert size(on_meta("mlp-128-80", input_shape=DIGITS, classes=10, batch_norm=True)) == 19_450 + 128 + 80
    assert size(on_meta("logistic", input_shape=GREY, classes=10)) == 7850
    assert size(on_meta("cnn", input_shape=GREY, classes=10)) == 9 * 32 + 64 + 9 * 32 * 64 + 128 + 3137 * 128 + 1290


def test_size_of_the_dnc():
    """The interface vector of the paper has WR + 3W + 5R + 3 entries."""
    model = on_meta("dnc", input_shape=(6,), classes=5)
    lstm = 4 * 64 * (6 + 64 + 64 + 2)
    assert size(model) == lstm + 65 * (16 * 4 + 3 * 16 + 5 * 4 + 3) + (64 + 64 + 1) * 5


# Scores, gradients and modes


@pytest.mark.parametrize("name", SMALL)
def test_scores_have_one_row_for_each_input_and_gradients_reach_every_parameter(name):
    model = randomised(make_model(name, classes=5, **SMALL[name]))
    inputs = torch.randn(6, *SMALL[name]["input_shape"])
    scores = model(inputs)
    assert scores.shape == (6, 5)
    nn.functional.cross_entropy(scores, torch.arange(6) % 5).backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert p.grad.isfinite().all(), parameter_name
        assert p.grad.count_nonzero() > 0, parameter_name


@pytest.mark.parametrize("name", ["wrn-10-1", "densenet-bc-10-4", "resnet-18"])
@pytest.mark.parametrize("input_shape", [CIFAR, (3, 64, 64), GREY, (1, 20, 24)])
def test_one_network_takes_images_of_any_size(name, input_shape):
    model = make_model(name, input_shape=input_shape, classes=3)
    assert model(torch.randn(2, *input_shape)).shape == (2, 3)
    if input_shape[0] == 3:
        assert shapes(model) == shapes(on_meta(name, input_shape=CIFAR, classes=3))


@pytest.mark.parametrize("name", SMALL)
def test_same_seed_same_model(name):
    def build(seed):
        torch.manual_seed(seed)
        return make_model(name, classes=5, **SMALL[name])

    a, b, c = build(3), build(3), build(4)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    inputs = torch.randn(4, *SMALL[name]["input_shape"])
    assert torch.equal(a(inputs), b(inputs))
    if name != "logistic":  # starts at zero
        assert not torch.equal(a(inputs), c(inputs))


@pytest.mark.parametrize("name", SMALL)
def test_copies_score_the_same(name):
    model = randomised(make_model(name, classes=5, **SMALL[name])).eval()
    inputs = torch.randn(3, *SMALL[name]["input_shape"])
    loaded = make_model(name, classes=5, **SMALL[name]).eval()
    loaded.load_state_dict(model.state_dict())
    for other in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(inputs), model(inputs))


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("resnet-18", "logistic")])
def test_dropout_acts_in_training_only(name):
    model = randomised(make_model(name, classes=5, dropout=0.5, **SMALL[name]))
    without = make_model(name, classes=5, **SMALL[name])
    without.load_state_dict(model.state_dict())
    inputs = torch.randn(4, *SMALL[name]["input_shape"])
    assert not torch.equal(model(inputs), model(inputs))
    assert torch.equal(without(inputs), without(inputs))
    without.load_state_dict(model.eval().state_dict())
    assert torch.equal(model(inputs), without.eval()(inputs))


@pytest.mark.parametrize("name", ["wrn-10-1", "densenet-bc-10-4", "resnet-18", "mlp-11", "cnn"])
def test_batch_statistics_are_used_and_tracked_in_training_only(name):
    model = make_model(name, classes=5, **SMALL[name])
    inputs = torch.randn(6, *SMALL[name]["input_shape"])
    before = {key: value.clone() for key, value in model.named_buffers()}
    model.eval()
    assert torch.allclose(model(inputs)[:3], model(inputs[:3]), atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.named_buffers())
    model.train()
    assert not torch.allclose(model(inputs)[:3], model(inputs[:3]), atol=1e-3)
    assert all(not torch.equal(value, before[key]) for key, value in model.named_buffers())


@pytest.mark.parametrize("name", SMALL)
def test_a_few_steps_lower_the_loss(name):
    model = make_model(name, classes=3, **SMALL[name])
    optimizer = ALIG(model.parameters(), lr=0.1)
    inputs, labels = torch.randn(12, *SMALL[name]["input_shape"]), torch.arange(12) % 3
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step(loss=loss)
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


# The structure of the residual and dense networks


def recorded(model, module, inputs):
    """Return the input and the output of a module in a forward pass."""
    record = {}
    handle = module.register_forward_hook(lambda _, args, out: record.update(x=args[0].clone(), y=out.clone()))
    model(inputs)
    handle.remove()
    return record["x"], record["y"]


def relu_norm(x, norm):
    std = (norm.running_var + norm.eps).sqrt()
    x = (x - norm.running_mean[:, None, None]) / std[:, None, None]
    return (x * norm.weight[:, None, None] + norm.bias[:, None, None]).relu()


def test_a_wide_resnet_is_the_network_of_the_paper():
    model = randomised(make_model("wrn-10-2", input_shape=GREY, classes=3)).eval()
    images = torch.randn(2, *GREY)
    conv2d = nn.functional.conv2d
    x = conv2d(images, model.stem.weight, padding=1)
    for block, stride in zip(model.blocks, (1, 2, 2), strict=True):
        a = relu_norm(x, block.norm1)
        y = conv2d(a, block.conv1.weight, stride=stride, padding=1)
        y = conv2d(relu_norm(y, block.norm2), block.conv2.weight, padding=1)
        x = y + conv2d(a, block.shortcut.weight, stride=stride)
    features = relu_norm(x, model.activation[0]).flatten(2).mean(2)
    torch.testing.assert_close(model(images), features @ model.classifier.weight.T + model.classifier.bias)


def test_a_densenet_is_the_network_of_the_paper():
    model = randomised(make_model("densenet-bc-10-3", input_shape=GREY, classes=3)).eval()
    images = torch.randn(2, *GREY)
    conv2d = nn.functional.conv2d
    layer1, transition1, layer2, transition2, layer3 = model.blocks
    x = conv2d(images, model.stem.weight, padding=1)
    for layer, transition in ((layer1, transition1), (layer2, transition2), (layer3, None)):
        y = conv2d(relu_norm(x, layer.norm1), layer.conv1.weight)
        x = torch.cat((x, conv2d(relu_norm(y, layer.norm2), layer.conv2.weight, padding=1)), 1)
        if transition is not None:
            x = conv2d(relu_norm(x, transition.norm), transition.conv.weight)
            x = (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4
    features = relu_norm(x, model.activation[0]).flatten(2).mean(2)
    torch.testing.assert_close(model(images), features @ model.classifier.weight.T + model.classifier.bias)


def test_a_wide_block_is_the_identity_without_its_last_convolution():
    """Pre-activation: the shortcut adds the input unchanged."""
    model = make_model("wrn-16-1", input_shape=CIFAR, classes=2)
    block = model.blocks[1]
    nn.init.zeros_(block.conv2.weight)
    x, y = recorded(model, block, torch.randn(2, *CIFAR))
    assert x.min() < 0.0
    assert torch.equal(x, y)


def test_the_stages_of_a_wide_resnet_halve_the_image():
    model = make_model("wrn-16-2", input_shape=CIFAR, classes=2)
    sizes = [tuple(recorded(model, block, torch.randn(2, *CIFAR))[1].shape[1:]) for block in model.blocks]
    assert sizes == [(32, 32, 32)] * 2 + [(64, 16, 16)] * 2 + [(128, 8, 8)] * 2


def test_dropout_of_a_wide_block_is_between_the_convolutions_and_after_the_rectifier():
    model = make_model("wrn-10-1", input_shape=CIFAR, classes=2, dropout=0.4)
    block = model.blocks[1]
    before, after = recorded(model, block.dropout, torch.randn(4, *CIFAR))
    assert before.min() == 0.0
    kept = after != 0.0
    assert torch.allclose(after[kept], before[kept] / 0.6)
    assert abs(kept.sum() / (before != 0.0).sum() - 0.6) < 0.02


def test_a_residual_block_rectifies_its_input_without_its_last_normalisation():
    model = make_model("resnet-18", input_shape=CIFAR, classes=2)
    block = model.blocks[1]
    nn.init.zeros_(block.norm2.weight)
    x, y = recorded(model, block, torch.randn(2, *CIFAR))
    assert torch.equal(x.relu(), y)


def test_the_stages_of_a_resnet_18_halve_the_image():
    model = make_model("resnet-18", input_shape=(3, 224, 224), classes=2).eval()
    record = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: record.append(tuple(out.shape[1:])))
    with torch.no_grad():
        model(torch.randn(1, 3, 224, 224))
    assert record == [(c, s, s) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7)) for _ in range(2)]


def test_a_dense_layer_keeps_what_came_before():
    model = make_model("densenet-bc-16-6", input_shape=CIFAR, classes=2)
    sizes = []
    for layer in model.blocks:
        x, y = recorded(model.eval(), layer, torch.randn(2, *CIFAR))
        if isinstance(layer, DenseLayer):
            assert torch.equal(y[:, : x.shape[1]], x)
        sizes.append(tuple(y.shape[1:]))
    # 12 channels at first, 6 more after each layer, half of them after a transition
    expected = [(18, 32, 32), (24, 32, 32), (12, 16, 16), (18, 16, 16), (24, 16, 16), (12, 8, 8), (18, 8, 8)]
    assert sizes == [*expected, (24, 8, 8)]


def test_dropout_of_a_densenet_follows_every_convolution_but_the_first():
    model = make_model("densenet-bc-16-6", input_shape=DIGITS, classes=2, dropout=0.2)
    events = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Dropout):
            module.register_forward_hook(lambda module, _, __: events.append(type(module)))
    model(torch.randn(2, *DIGITS))
    assert events == [nn.Conv2d] + [nn.Conv2d, nn.Dropout] * (3 * 2 * 2 + 2)


def test_convolutions_have_the_initialisation_of_he_et_al():
    model = make_model("wrn-10-4", input_shape=CIFAR, classes=10)
    for block in model.blocks:
        for conv in (block.conv1, block.conv2):
            assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * conv.out_channels)), rel=0.03)
    assert model.classifier.bias.count_nonzero() == 0


# InferSent


@pytest.fixture
def infersent():
    embeddings = torch.randn(20, 6)
    return make_model("infersent-5", input_shape=(20, 6), classes=3, embeddings=embeddings, fully_connected=7).double()


@pytest.fixture
def pairs():
    lengths = torch.tensor([[3, 1], [5, 2], [1, 6], [4, 4]])
    return torch.randint(20, (4, 5)), lengths[:, 0], torch.randint(20, (4, 6)), lengths[:, 1]


def test_infersent_is_the_formula_of_the_paper(infersent, pairs):
    """Compare with single sentences, without padding, in two LSTMs of one direction each."""
    premise, premise_lengths, hypothesis, hypothesis_lengths = pairs

    def direction(suffix):
        lstm = nn.LSTM(6, 5).double()
        lstm.load_state_dict({key: infersent.encoder.state_dict()[key + suffix] for key in lstm.state_dict()})
        return lstm

    forward, backward = direction(""), direction("_reverse")

    def encode(indices):
        words = infersent.embeddings[indices]
        return torch.cat((forward(words)[0], backward(words.flip(0))[0].flip(0)), 1).max(0).values

    expected = []
    for p, m, h, n in zip(premise, premise_lengths, hypothesis, hypothesis_lengths, strict=True):
        u, v = encode(p[:m]), encode(h[:n])
        x = torch.cat((u, v, abs(u - v), u * v))
        for layer in infersent.classifier:
            if isinstance(layer, nn.Linear):
                x = layer.weight @ x + layer.bias
        expected.append(x)
    torch.testing.assert_close(infersent(*pairs), torch.stack(expected))


def test_infersent_ignores_the_padding(infersent, pairs):
    premise, m, hypothesis, n = pairs
    scores = infersent(*pairs)
    for padding in (0, 13):
        longer = torch.cat((premise, torch.full((4, 3), padding)), 1)
        for row, length in zip(longer, m, strict=True):
            row[length:] = padding
        torch.testing.assert_close(infersent(longer, m, hypothesis, n), scores, rtol=0, atol=1e-14)
    assert not torch.allclose(infersent(premise.flip(1), m, hypothesis, n), scores)


def test_infersent_ignores_the_padding_of_negative_features(infersent):
    """Zeros in place of the padding would be the maximum."""
    with torch.no_grad():
        for p in infersent.encoder.parameters():
            p.zero_()
        for bias in (infersent.encoder.bias_ih_l0, infersent.encoder.bias_ih_l0_reverse):
            bias.copy_(torch.tensor([5.0, 5.0, -5.0, 5.0]).repeat_interleave(5))
    words = torch.randint(20, (2, 6))
    encoded = infersent.encode(words, torch.tensor([2, 6]))
    assert (encoded < 0.0).all()
    torch.testing.assert_close(encoded[:1], infersent.encode(words[:1, :2], torch.tensor([2])))


def test_infersent_treats_pairs_alike_in_any_order(infersent, pairs):
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(infersent(*(part[order] for part in pairs)), infersent(*pairs)[order])
    premise, m, hypothesis, n = pairs
    assert not torch.allclose(infersent(hypothesis, n, premise, m), infersent(*pairs))


def test_embeddings_are_frozen_and_saved(infersent, pairs):
    before = infersent.embeddings.clone()
    optimizer = torch.optim.SGD(infersent.parameters(), lr=0.1)
    nn.functional.cross_entropy(infersent(*pairs), torch.tensor([0, 1, 2, 0])).backward()
    assert all(p.grad is not None and p.grad.count_nonzero() > 0 for p in infersent.parameters())
    optimizer.step()
    assert torch.equal(infersent.embeddings, before)
    assert "embeddings" in infersent.state_dict()
    assert "embeddings" not in dict(infersent.named_parameters())


def test_dropout_of_infersent(pairs):
    def build(**options):
        torch.manual_seed(1)
        return make_model("infersent-5", input_shape=(20, 6), classes=3, fully_connected=7, **options)

    plain, dropout = build(), build(dropout=0.5)
    assert not torch.equal(dropout(*pairs), dropout(*pairs))
    assert torch.equal(dropout.eval()(*pairs), plain(*pairs))


# The differentiable neural computer


def tiny_dnc(**options):
    sizes = {"hidden": 6, "slots": 5, "word_size": 3, "read_heads": 2, **options}
    return make_model("dnc", input_shape=(4,), classes=3, **sizes).double()


def literal_access(memory, interface):
    """Compute the equations of the paper's Methods for one sequence, entry by entry."""
    M, u, p, L, w, reads = (part[0].tolist() for part in memory)
    k_r, beta_r, k_w, beta_w, e, v, free, g_a, g_w, pi = (part[0].tolist() for part in interface)
    N, W, R = len(M), len(v), len(reads)

    def content(M, key, beta):
        def norm(x):
            return math.sqrt(sum(a * a for a in x) + dnc.NORM_EPSILON)

        scores = [
            math.exp(beta * sum(a * b for a, b in zip(row, key, strict=True)) / norm(row) / norm(key)) for row in M
        ]
        return [s / sum(scores) for s in scores]

    psi = [math.prod(1 - free[r] * reads[r][i] for r in range(R)) for i in range(N)]
    u = [(u[i] + w[i] - u[i] * w[i]) * psi[i] for i in range(N)]
    phi = sorted(range(N), key=lambda i: u[i])
    a = [0.0] * N
    for j in range(N):
        a[phi[j]] = (1 - u[phi[j]]) * math.prod(u[phi[i]] for i in range(j))
    c = content(M, k_w, beta_w[0])
    w = [g_w[0] * (g_a[0] * a[i] + (1 - g_a[0]) * c[i]) for i in range(N)]
    M = [[M[i][j] * (1 - w[i] * e[j]) + w[i] * v[j] for j in range(W)] for i in range(N)]
    L = [[(1 - w[i] - w[j]) * L[i][j] + w[i] * p[j] if i != j else 0.0 for j in range(N)] for i in range(N)]
    p = [(1 - sum(w)) * p[i] + w[i] for i in range(N)]
    new = []
    for r in range(R):
        c = content(M, k_r[r], beta_r[r])
        b = [sum(L[j][i] * reads[r][j] for j in range(N)) for i in range(N)]
        f = [sum(L[i][j] * reads[r][j] for j in range(N)) for i in range(N)]
        new.append([pi[r][0] * b[i] + pi[r][1] * c[i] + pi[r][2] * f[i] for i in range(N)])
    words = [[sum(new[r][i] * M[i][j] for i in range(N)) for j in range(W)] for r in range(R)]
    return words, dnc.Memory(*(torch.tensor([part], dtype=torch.float64) for part in (M, u, p, L, w, new)))


def random_interface(batch, word_size, read_heads):
    size = sum(dnc.Interface.sizes(word_size, read_heads))
    return dnc.Interface.parse(3.0 * torch.randn(batch, size, dtype=torch.float64), word_size, read_heads)


def test_access_is_the_equations_of_the_paper():
    memory = literal = tiny_dnc().empty_memory(torch.zeros(1, dtype=torch.float64))
    for _ in range(8):
        interface = random_interface(1, 3, 2)
        words, memory = dnc.access(memory, interface)
        expected, literal = literal_access(literal, interface)
        torch.testing.assert_close(words[0], torch.tensor(expected, dtype=torch.float64))
        for ours, theirs in zip(memory, literal, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_memory_stays_within_its_bounds():
    memory = tiny_dnc().empty_memory(torch.zeros(30, dtype=torch.float64))
    slack = 1.0 + 1e-12
    largest = Counter()
    for _ in range(30):
        _, memory = dnc.access(memory, random_interface(30, 3, 2))
        for weighting in (memory.write_weighting, memory.read_weightings, memory.precedence, memory.links):
            assert weighting.min() >= 0.0
            assert weighting.sum(-1).max() <= slack
        assert memory.links.sum(1).max() <= slack
        assert memory.links.diagonal(dim1=1, dim2=2).count_nonzero() == 0
        assert memory.usage.min() >= 0.0
        assert memory.usage.max() <= slack
        for name, part in memory._asdict().items():
            largest[name] = max(largest[name], part.abs().max().item())
    assert all(value > 0.5 for value in largest.values())  # the bounds were put to the test


def test_the_interface_stays_within_its_bounds():
    interface = random_interface(200, 3, 2)
    for strengths in (interface.read_strengths, interface.write_strength):
        assert 1.0 <= strengths.min() < 1.01
    for gates in (interface.erase, interface.free_gates, interface.allocation_gate, interface.write_gate):
        assert 0.0 <= gates.min() < 0.1
        assert 0.9 < gates.max() <= 1.0
    assert interface.read_keys.shape == (200, 2, 3)
    assert interface.read_modes.min() >= 0.0
    torch.testing.assert_close(interface.read_modes.sum(2), torch.ones(200, 2, dtype=torch.float64))


def test_weightings_by_hand():
    # the least used first: 0.9, then 0.1 * 0.8, then 0.1 * 0.2 * 0.5
    allocation = dnc.allocation_weighting(torch.tensor([[0.2, 0.5, 0.1]]))
    torch.testing.assert_close(allocation, torch.tensor([[0.08, 0.01, 0.9]]))
    assert dnc.allocation_weighting(torch.ones(1, 4)).count_nonzero() == 0

    contents = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
    weighting = dnc.content_weighting(contents, torch.tensor([[[0.0, 5.0]]]), torch.tensor([[2.0]]))
    torch.testing.assert_close(weighting, torch.tensor([[[0.0, 2.0, 0.0]]]).softmax(2), rtol=1e-5, atol=1e-6)

    links, precedence = torch.zeros(1, 4, 4), torch.zeros(1, 4)
    for slot in (0, 2, 1):
        w = nn.functional.one_hot(torch.tensor([slot]), 4).float()
        links = dnc.next_links(links, precedence, w)
        precedence = w
    assert links.nonzero().tolist() == [[0, 1, 2], [0, 2, 0]]  # 2 follows 0, 1 follows 2


def test_a_memory_driven_by_hand_copies_a_sequence():
    """Allocate three slots in turn, find the first by its content, follow the links; then free what was read."""
    W, R = 3, 1
    words = torch.eye(3, dtype=torch.float64)
    on, off = 40.0, -40.0

    def ask(write=None, key=None, mode=1, free=off):
        modes = [off, off, off]
        modes[mode] = on
        nothing = torch.zeros(W, dtype=torch.float64)
        parts = [nothing if key is None else key, [on], nothing, [0.0], [on] * W, nothing if write is None else write]
        parts += [[free], [on], [off if write is None else on], modes]
        vector = torch.cat([torch.as_tensor(part, dtype=torch.float64) for part in parts])
        return dnc.Interface.parse(vector.unsqueeze(0), W, R)

    model = make_model("dnc", input_shape=(1,), classes=1, slots=4, word_size=W, read_heads=R)
    memory = model.empty_memory(torch.zeros(1, dtype=torch.float64))
    for word in words:
        _, memory = dnc.access(memory, ask(write=word))
    torch.testing.assert_close(memory.contents[0, :3], words)
    for word, question in zip(words, [ask(key=words[0]), ask(mode=2), ask(mode=2)], strict=True):
        read, memory = dnc.access(memory, question)
        torch.testing.assert_close(read[0, 0], word, rtol=0, atol=1e-8)
    read, memory = dnc.access(memory, ask(mode=0))
    torch.testing.assert_close(read[0, 0], words[1], rtol=0, atol=1e-8)
    assert memory.usage[0, :3].min() > 0.99
    _, memory = dnc.access(memory, ask(free=on))
    torch.testing.assert_close(memory.usage[0], torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64))


def test_gradients_of_the_dnc():
    model = tiny_dnc(hidden=3, slots=3, word_size=2, read_heads=1)
    inputs = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    names, values = zip(*model.named_parameters(), strict=True)

    def outputs(inputs, *values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs,))

    assert torch.autograd.gradcheck(outputs, (inputs, *values))
    model(inputs).square().sum().backward()
    assert all(p.grad.count_nonzero() > 0 for p in model.parameters())


def test_the_dnc_does_not_see_the_future():
    model, inputs = tiny_dnc(), torch.randn(2, 6, 4, dtype=torch.float64)
    outputs = model(inputs)
    assert outputs.shape == (2, 6, 3)
    torch.testing.assert_close(model(inputs[:, :4]), outputs[:, :4], rtol=0, atol=1e-14)
    torch.testing.assert_close(model(inputs[:1]), outputs[:1], rtol=0, atol=1e-14)


def test_the_dnc_learns_to_copy():
    torch.manual_seed(0)
    model = make_model("dnc", input_shape=(4,), classes=3, hidden=16, slots=4, word_size=4, read_heads=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(120):
        inputs, labels = repeat_copy(16, bits=2, length=(1, 1), repeats=(1, 1))
        loss = bits_loss(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # without remembering, the two bits cost 2 log 2 = 1.39
    assert losses[0] > 3.0
    assert sum(losses[-10:]) / 10 < 0.3


# The repeat-copy task


def test_repeat_copy_asks_for_what_it_shows():
    batch = repeat_copy(40, bits=3, length=(1, 4), repeats=(2, 3), generator=torch.Generator().manual_seed(0))
    seen, last = set(), 0
    for inputs, labels in zip(*batch, strict=True):
        assert (inputs.shape[1], labels.shape[1]) == (5, 4)
        assert inputs[:, 3].nonzero().tolist() == [[0]]
        (asked,) = inputs[:, 4].nonzero().flatten().tolist()
        length, repeats = asked - 1, round(10 * inputs[asked, 4].item())
        seen.add((length, repeats))
        pattern = inputs[1 : 1 + length, :3]
        end = 2 + length + length * repeats
        last = max(last, end)
        assert torch.equal(labels[2 + length : end, :3], pattern.repeat(repeats, 1))
        assert (labels[:, 3] == 1).nonzero().tolist() == [[end]]
        assert (labels >= 0).all(1).nonzero().flatten().tolist() == list(range(2 + length, end + 1))
        assert ((labels < 0).all(1) == (labels < 0).any(1)).all()
        assert inputs[1 + length :, :4].count_nonzero() == 0
    assert seen == {(length, repeats) for length in (1, 2, 3, 4) for repeats in (2, 3)}
    assert batch[0].shape[1] == last + 1


def test_repeat_copy_is_determined_by_its_generator():
    a, b, c = (repeat_copy(16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0][:, :2], c[0][:, :2])
    assert [part.shape[2] for part in a] == [6, 5]
    assert {part.dtype for part in a} == {torch.float32}


def test_repeat_copy_loss():
    _, labels = repeat_copy(8)
    perfect = 400.0 * (labels - 0.5)
    assert bits_loss(perfect, labels) == 0.0
    blank = bits_loss(torch.zeros_like(perfect), labels)
    assert blank.item() == pytest.approx(math.log(2) * (labels >= 0).sum().item() / 8, rel=1e-6)
    noise = torch.randn_like(perfect) * (labels < 0)
    assert bits_loss(perfect + 1e3 * noise, labels) == 0.0


def test_padding_does_not_change_the_loss_of_a_sequence():
    batch = repeat_copy(6, length=(1, 3))
    model = make_model("dnc", input_shape=(6,), classes=5)
    together = bits_loss(model(batch[0]), batch[1])
    alone = []
    for inputs, labels in zip(*batch, strict=True):
        steps = int((labels[:, 0] >= 0).nonzero().max()) + 1
        alone.append(bits_loss(model(inputs[None, :steps]), labels[None, :steps]))
    torch.testing.assert_close(together, torch.stack(alone).mean())


# Names


def test_every_example_is_built_by_its_family():
    input_shapes = {"infersent": (9, 4), "infersent-512": (9, 4), "dnc": (6,), "gpt-2-64": (64,), "ngram-6-96": (64,)}
    for family in FAMILIES:
        for name in family.examples:
            for spelling in (name, name.upper()):
                model = on_meta(spelling, input_shape=input_shapes.get(name, CIFAR), classes=3)
                assert isinstance(model, getattr(family.build, "func", family.build))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("wrn-40", "wrn-40-4"),
        ("wrn_16_4", "wrn-16-4"),
        ("densenet-40-40", "densenet-bc-40-40"),
        ("resnet18", "resnet-18"),
        ("infer-sent", "infersent"),
        ("logistics", "logistic"),
        ("mlp", "mlp-128-128"),
        ("", "wrn-40-4"),
        ("wrn-٤٠-4", "wrn-40-4"),
    ],
)
def test_unknown_names(name, nearest):
    message = rf"unknown model '{name}'; did you mean '{nearest}'\? .* wrn-<depth>-<width>, .*, logistic$"
    with pytest.raises(ValueError, match=message):
        make_model(name, input_shape=CIFAR, classes=10)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("wrn-41-4", {}, r"the depth of a wide residual network must be 6n \+ 4 \(10, 16, .*\), got 41"),
        ("wrn-4-4", {}, r"must be 6n \+ 4 .*, got 4$"),
        ("wrn-10-0", {}, r"unknown model 'wrn-10-0'; did you mean 'wrn-10-1'"),
        ("densenet-bc-41-12", {}, r"the depth of a DenseNet-BC must be 6n \+ 4"),
        ("mlp-5-0", {}, r"unknown model 'mlp-5-0'; .* mlp-<width>-..."),
        ("wrn-10-1", {"input_shape": (32, 32)}, r"input_shape must be \(channels, height, width\), got \(32, 32\)"),
        (
            "resnet-18",
            {"input_shape": (0, 32, 32)},
            r"each size in input_shape must be an integer of at least 1, got 0",
        ),
        (
            "cnn",
            {"input_shape": (1, 28, 3)},
            r"images must have at least 4 x 4 pixels, got 28 x 3; image_size scales them",
        ),
        ("infersent", {}, r"input_shape must be \(words, dimension\), got \(3, 32, 32\)"),
        ("dnc", {}, r"input_shape must be \(channels\), got \(3, 32, 32\)"),
        ("logistic", {"classes": 0}, r"classes must be an integer of at least 1, got 0"),
        ("cnn", {"dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ("resnet-18", {"dropout": 0.3}, r"the model 'resnet-18' has no dropout, got dropout=0.3"),
    ],
)
def test_wrong_arguments(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        make_model(name, **{"input_shape": CIFAR, "classes": 10, **arguments})
