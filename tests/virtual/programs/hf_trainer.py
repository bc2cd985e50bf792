"""Fine-tunes GPT-2 (a language model) or BERT (a classifier) with transformers' Trainer; weights are not downloaded."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)


class Sentences(Dataset[dict[str, Any]]):
    """Random tokens, with a class for each sentence or with themselves as labels."""

    def __init__(self, count: int, length: int, words: int, classes: int | None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(words, (count, length), generator=generator)
        self.classes = None if classes is None else torch.randint(classes, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = self.tokens[index]
        labels = tokens if self.classes is None else self.classes[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def metrics(predicted: Any) -> dict[str, float]:
    logits, labels = predicted
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main(args: argparse.Namespace) -> None:
    model: torch.nn.Module
    if args.model == "gpt2":
        config = GPT2Config(use_cache=False, n_layer=args.layers)
        model, words, classes = GPT2LMHeadModel(config), config.vocab_size, None
    else:
        config = BertConfig(num_labels=3, num_hidden_layers=args.layers)
        model, words, classes = BertForSequenceClassification(config), config.vocab_size, 3
    count = args.batch_size * args.accumulate * args.steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=args.batch_size,
                per_device_eval_batch_size=args.batch_size,
                gradient_accumulation_steps=args.accumulate,
                gradient_checkpointing=args.gradient_checkpointing,
                max_steps=args.steps,
                learning_rate=5e-5,
                warmup_steps=1,
                weight_decay=0.01,
                bf16=args.precision == "bf16",
                fp16=args.precision == "fp16",
                optim=args.optim,
                logging_steps=1,
                eval_strategy="steps",
                eval_steps=args.steps,
                save_strategy="steps" if args.save else "no",
                save_steps=args.steps,
                dataloader_num_workers=1,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Sentences(count, args.length, words, classes),
            eval_dataset=Sentences(args.batch_size * 2, args.length, words, classes),
            compute_metrics=None if classes is None else metrics,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("gpt2", "bert"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--optim", default="adamw_torch")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--save", action="store_true")
    main(parser.parse_args())
