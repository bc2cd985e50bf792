"""Training in the shape of timm's script, with timm's own factories throughout."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from functools import partial
from typing import Any

import timm
import torch
import torchvision
from timm.data import Mixup, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import (
    AverageMeter,
    CheckpointSaver,
    ModelEmaV3,
    NativeScaler,
    accuracy,
    random_seed,
)

CLASSES = 100


def images_of(count: int, size: int) -> Any:
    """Images of random numbers; timm's loader sets their `transform`."""
    return torchvision.datasets.FakeData(count, (3, size, size), CLASSES)


def validate(model: torch.nn.Module, loader: Any, criterion: torch.nn.Module, autocast: Any) -> dict[str, float]:
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.inference_mode():
        for images, target in loader:
            with autocast():
                output = model(images)
                loss = criterion(output, target)
            first, _ = accuracy(output, target, topk=(1, 5))
            torch.cuda.synchronize()
            losses.update(loss.data.item(), images.size(0))
            top1.update(first.item(), images.size(0))
    return {"loss": losses.avg, "top1": top1.avg}


def main(args: argparse.Namespace) -> None:
    random_seed(42, 0)
    model = timm.create_model(args.model, num_classes=CLASSES, drop_path_rate=0.1).cuda()
    if args.grad_checkpointing:
        model.set_grad_checkpointing(enable=True)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    data = resolve_data_config({}, model=model)
    size = data["input_size"][-1]
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    autocast = partial(torch.autocast, "cuda", dtype=torch.float16 if args.amp_dtype == "float16" else torch.bfloat16)
    scaler = NativeScaler() if args.amp_dtype == "float16" else None
    ema = ModelEmaV3(model, decay=0.9998, use_warmup=True, foreach=True)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    common: dict[str, Any] = {
        "input_size": data["input_size"],
        "batch_size": args.batch_size,
        "num_workers": 2,
        "mean": data["mean"],
        "std": data["std"],
        "pin_memory": True,
    }
    count = args.batch_size * args.accumulate * args.updates
    training = create_loader(
        images_of(count, size), is_training=True, re_prob=0.25, auto_augment="rand-m9-mstd0.5", **common
    )
    testing = create_loader(images_of(args.batch_size + 1, size), is_training=False, **common)
    scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=1, warmup_epochs=0)
    train_loss, test_loss = SoftTargetCrossEntropy().cuda(), torch.nn.CrossEntropyLoss().cuda()
    second_order = getattr(optimizer, "is_second_order", False)
    with tempfile.TemporaryDirectory() as folder:
        saver = CheckpointSaver(
            model, optimizer, args=args, model_ema=ema, amp_scaler=scaler, checkpoint_dir=folder, recovery_dir=folder
        )
        for epoch in range(epochs):
            model.train()
            optimizer.zero_grad()
            losses = AverageMeter()
            for index, batch in enumerate(training):
                images, target = mixup(*batch)
                if args.channels_last:
                    images = images.contiguous(memory_format=torch.channels_last)
                update = (index + 1) % args.accumulate == 0
                with autocast():
                    loss = train_loss(model(images), target) / args.accumulate
                if scaler is not None:
                    scaler(
                        loss,
                        optimizer,
                        clip_grad=1.0,
                        clip_mode="norm",
                        parameters=model.parameters(),
                        create_graph=second_order,
                        need_update=update,
                    )
                else:
                    loss.backward(create_graph=second_order)
                    if update:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                losses.update(loss.item() * args.accumulate, images.size(0))
                if not update:
                    continue
                optimizer.zero_grad()
                ema.update(model, step=index)
                torch.cuda.synchronize()
                scheduler.step_update(num_updates=index, metric=losses.avg)
            metrics = validate(model, testing, test_loss, autocast)
            ema_metrics = validate(ema, testing, test_loss, autocast)
            scheduler.step(epoch + 1, metrics["top1"])
            saver.save_checkpoint(epoch, metric=ema_metrics["top1"])
            print(f"epoch {epoch}: {metrics}, averaged {ema_metrics}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--opt", default="adamw")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--amp-dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--grad-checkpointing", action="store_true")
    with suppress(KeyboardInterrupt):
        main(parser.parse_args())
