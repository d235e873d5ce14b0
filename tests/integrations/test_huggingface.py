"""The Trainer of transformers, and accelerate, against hand-written loops."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from borat import ALIG, BORAT, FreeBORAT
from flavours import Flavour
from problems import batches, network

accelerate = pytest.importorskip("accelerate", reason="needs the trainers extra")
transformers = pytest.importorskip("transformers", reason="needs the trainers extra")
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from borat.integrations import unwrap  # noqa: E402
from borat.integrations.huggingface import BoratMixin, BoratTrainer  # noqa: E402
from trainers import huggingface_arguments  # noqa: E402

STEPS = 7


def over(*flavours):
    return pytest.mark.parametrize("make", flavours, ids=str)


BORAT3, BORAT5, FREE3, FREE5 = (Flavour(cls, size) for cls in (BORAT, FreeBORAT) for size in (3, 5))


def bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def sentences(count=STEPS * 4):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(30, (count, 6), generator=generator)
    labels = torch.randint(3, (count,), generator=generator)
    return [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]


def point(model):
    return parameters_to_vector(model.parameters()).detach().clone()


def by_hand(model, data, make=BORAT5, batch_size=4):
    """Return the points at which the batches are evaluated, and the result after each."""
    optimizer = make(model.parameters(), lr=1.0)
    trials, results = [], []
    for start in range(0, len(data), batch_size):
        batch = data[start : start + batch_size]
        trials.append(point(model))
        optimizer.zero_grad()
        inputs = {key: torch.stack([row[key] for row in batch]) for key in batch[0]}
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step(loss=loss)
        optimizer.eval()
        results.append(point(model))
        optimizer.train()
    return trials, results


def trainer_of(model, tmp_path, make=BORAT5, kind=BoratTrainer, data=None, **options):
    arguments = huggingface_arguments(tmp_path, 4, **options)
    return kind(
        model=model,
        args=arguments,
        train_dataset=data or sentences(),
        eval_dataset=sentences(2),
        optimizers=(make(model.parameters(), lr=1.0), None),
    )


class Recording(BoratTrainer):
    """Record the point of the model during training and evaluation."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trained_at = []
        self.evaluated_at = []

    def compute_loss(self, model, *args, **kwargs):
        (self.trained_at if model.training else self.evaluated_at).append(point(model))
        return super().compute_loss(model, *args, **kwargs)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@over(Flavour(BORAT, 2), BORAT3, BORAT5, Flavour(FreeBORAT, 2), FREE3, FREE5)
def test_trainer_equals_a_hand_written_loop_to_the_bit(make, tmp_path):
    model = bert()
    trials, results = by_hand(copy.deepcopy(model), sentences(), make)
    trainer = trainer_of(model, tmp_path, make, Recording)
    trainer.train()
    assert_same(trainer.trained_at, trials)
    assert torch.equal(point(model), results[-1])


@over(BORAT5, FREE3)
def test_trainer_accumulates_to_the_large_batch(make, tmp_path):
    """For a language model, the trainer divides the loss by the number of tokens in all micro-batches."""
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.LlamaForCausalLM(config).double()
    data = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in sentences()]
    trials, _ = by_hand(copy.deepcopy(model), data, make)
    halves = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer = trainer_of(model, tmp_path, make, kind=Recording, data=data, **halves)
    trainer.train()
    assert len(trainer.trained_at) == 2 * STEPS
    for ours, hand in zip(trainer.trained_at[::2], trials, strict=True):
        torch.testing.assert_close(ours, hand, rtol=0, atol=1e-6)


@over(BORAT5, FREE3)
def test_trainer_evaluates_and_saves_at_the_result(make, tmp_path):
    model = bert()
    trials, results = by_hand(copy.deepcopy(model), sentences(), make)
    each_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of(model, tmp_path, make, kind=Recording, **each_step)
    trainer.train()
    assert_same(trainer.trained_at, trials)
    assert_same(trainer.evaluated_at, results)
    for step, result in enumerate(results, start=1):
        assert torch.equal(saved_point(model, tmp_path / f"checkpoint-{step}"), result)


@over(BORAT5, FREE3)
def test_trainer_resumes_exactly_within_a_bundle_and_again(make, tmp_path):
    start, data = bert(), sentences()
    trials, results = by_hand(copy.deepcopy(start), data, make)
    checkpoint = None
    for steps in (1, 3, 5, 7):
        trainer = trainer_of(
            copy.deepcopy(start), tmp_path, make, kind=Recording, max_steps=steps, save_strategy="steps", save_steps=1
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        checkpoint = str(tmp_path / f"checkpoint-{steps}")
        assert_same(trainer.trained_at, trials[max(steps - 2, 0) : steps])
        assert torch.equal(point(trainer.model), results[steps - 1])


@over(BORAT5, FREE3)
def test_trainer_keeps_the_best_model(make, tmp_path):
    """The best weights, loaded at the end, must not be overwritten by the result of the last bundle."""
    model = bert()
    _, results = by_hand(copy.deepcopy(model), sentences(), make)
    each_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of(model, tmp_path, make, kind=Recording, load_best_model_at_end=True, **each_step)
    trainer.train()
    best = trainer.state.best_global_step
    trainer.evaluate()
    assert torch.equal(point(model), results[best - 1])


def test_trainer_discards_the_loss_of_a_skipped_step(tmp_path, monkeypatch):
    """If a gradient scaler skips a step, the next one must use only its own loss."""
    step, calls = AcceleratedOptimizer.step, []

    def skip_the_first(self, closure=None):
        calls.append(closure)
        if len(calls) > 1:
            step(self, closure)

    monkeypatch.setattr(AcceleratedOptimizer, "step", skip_the_first)
    trainer = trainer_of(
        bert(), tmp_path, Flavour(BORAT, 2), data=sentences(8), logging_strategy="steps", logging_steps=1
    )
    trainer.train()
    loss = trainer.state.log_history[1]["loss"]
    assert unwrap(trainer.optimizer).last_step.offsets[0] == pytest.approx(loss)


def test_mixin_on_another_trainer(tmp_path):
    class Mine(BoratMixin, transformers.Seq2SeqTrainer):
        pass

    model = bert()
    trainer = Mine(
        model=model,
        args=transformers.Seq2SeqTrainingArguments(
            tmp_path, max_grad_norm=0, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True
        ),
        train_dataset=sentences(),
        optimizers=(ALIG(model.parameters(), lr=1.0), None),
    )
    trainer.train()
    assert unwrap(trainer.optimizer).last_step.kind in {"SGD", "ALIG"}


def test_trainer_makes_the_optimizer(tmp_path):
    arguments = transformers.TrainingArguments(
        tmp_path, max_grad_norm=0, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = BoratTrainer(bert(), arguments, train_dataset=sentences(), optimizer_cls_and_kwargs=(BORAT, {"lr": 2.0}))
    trainer.train()
    assert set(unwrap(trainer.optimizer).last_step.lr) == {2.0}, "one for each of the trainer's groups"


def test_mixin_reports_mistakes(tmp_path):
    with pytest.warns(UserWarning, match="max_grad_norm=1 clips the gradients"):
        trainer_of(bert(), tmp_path, max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"weight_decay must be 0 with BORAT, got 0\.1"):
        trainer_of(bert(), tmp_path, weight_decay=0.1).train()
    trainer = trainer_of(bert(), tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters())
    with pytest.raises(TypeError, match="must be a FreeBORAT, BORAT or ALIG, got a SGD"):
        trainer.train()


@over(BORAT5, FREE3)
@pytest.mark.parametrize("passed_by", ["closure", "observe"])
def test_accelerate_equals_a_hand_written_loop(make, passed_by):
    net, data = network(torch.float32), batches(7, torch.float32)
    hand = copy.deepcopy(net)
    reference = make(hand.parameters(), lr=1.0)
    accelerator = accelerate.Accelerator(cpu=True)
    borat = make(net.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(net, borat)
    assert unwrap(optimizer) is borat
    for x, y in data:
        step_by_hand(hand, reference, x, y)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if passed_by == "observe":
            borat.observe(loss)
            optimizer.step()
        else:
            optimizer.step(lambda loss=loss: loss)
        assert torch.equal(point(net), point(hand))
    optimizer.eval()
    reference.eval()
    assert torch.equal(point(net), point(hand))


@over(BORAT3, FREE3)
def test_accelerate_accumulates_to_the_large_batch(make):
    net, data = network(), batches(5)
    hand = copy.deepcopy(net)
    reference = make(hand.parameters(), lr=1.0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    borat = make(net.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(net, borat)
    for x, y in data:
        step_by_hand(hand, reference, x, y)
        for half in (slice(0, 4), slice(4, 8)):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x[half]), y[half])
                accelerator.backward(loss)
                borat.observe(loss / accelerator.gradient_accumulation_steps)
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(point(net), point(hand), rtol=0, atol=1e-12)


def step_by_hand(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step(loss=loss)


def saved_point(model, folder):
    saved = load_file(folder / "model.safetensors")
    return parameters_to_vector([saved[name] for name, _ in model.named_parameters()])
