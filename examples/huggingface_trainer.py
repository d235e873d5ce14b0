"""The Trainer of Hugging Face transformers: a small language model learns to count, from random weights.

python examples/huggingface_trainer.py
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from borat import FreeBORAT
from borat.integrations.huggingface import BoratTrainer


def main():
    torch.manual_seed(0)
    counting = (torch.arange(20)[:, None] + torch.arange(12)) % 20  # 17, 18, 19, 0, 1, …
    rows = [{"input_ids": row, "labels": row} for row in counting]
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = BoratTrainer(
            model=LlamaForCausalLM(config),
            args=TrainingArguments(
                folder,
                max_steps=60,
                per_device_train_batch_size=5,
                max_grad_norm=0,  # turn off clipping, which is on by default
                lr_scheduler_type="constant",
                eval_strategy="steps",
                eval_steps=20,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=rows[:15],
            eval_dataset=rows[15:],
            optimizer_cls_and_kwargs=(FreeBORAT, {}),
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    print(f"evaluation loss on sequences that start at other numbers: {before:.3f} -> {after:.3f}")


if __name__ == "__main__":
    main()
