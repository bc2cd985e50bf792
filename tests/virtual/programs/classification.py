"""An image classifier trained and evaluated in the shape of torchvision's reference script.

Worker processes decode and augment, batches are pinned and copied without blocking, MixUp and CutMix run in the collate
function, weights keep an exponential average, checkpoints are written and read back.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

CLASSES = 100


class Smoothed:
    """The last values of a number, and their mean over all."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=20)
        self.total, self.count = 0.0, 0

    def update(self, value: float, count: int = 1) -> None:
        self.last.append(value)
        self.total += value * count
        self.count += count

    def __str__(self) -> str:
        median = torch.tensor(list(self.last)).median().item()
        return f"{median:.4f} ({self.total / max(self.count, 1):.4f})"


class Average(torch.optim.swa_utils.AveragedModel):
    """Exponential moving average of the weights and buffers."""

    def __init__(self, model: nn.Module, decay: float, device: torch.device) -> None:
        def average(old: torch.Tensor, new: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
            return decay * old + (1 - decay) * new

        super().__init__(model, device, average, use_buffers=True)


def accuracy(output: torch.Tensor, target: torch.Tensor, best: tuple[int, ...] = (1, 5)) -> list[torch.Tensor]:
    with torch.inference_mode():
        if target.ndim == 2:
            target = target.max(dim=1)[1]
        _, predicted = output.topk(max(best), 1, True, True)
        correct = predicted.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in best]


def loaders(args: argparse.Namespace) -> tuple[DataLoader[Any], DataLoader[Any]]:
    normalise = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    to_tensor = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), normalise]
    train = v2.Compose([v2.RandomResizedCrop(args.size, antialias=True), v2.RandomHorizontalFlip(), *to_tensor])
    test = v2.Compose([v2.Resize(args.size + 32, antialias=True), v2.CenterCrop(args.size), *to_tensor])
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])

    def fake(count: int, transform: Any) -> Any:
        return torchvision.datasets.FakeData(count, (3, args.size + 40, args.size + 40), CLASSES, transform)

    # The last batch of the evaluation is a smaller one.
    common: dict[str, Any] = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    training = DataLoader(
        fake(args.batch_size * args.steps, train),
        shuffle=True,
        drop_last=True,
        collate_fn=lambda batch: mix(*default_collate(batch)),
        **common,
    )
    return training, DataLoader(fake(args.batch_size + args.batch_size // 2, test), shuffle=False, **common)


def train_one_epoch(
    model: nn.Module,
    average: Average | None,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    scaler: torch.amp.GradScaler | None,
    args: argparse.Namespace,
) -> None:
    model.train()
    loss_meter, top1 = Smoothed(), Smoothed()
    for i, batch in enumerate(loader):
        start = time.time()
        image, target = (tensor.cuda(non_blocking=True) for tensor in batch)
        if args.channels_last:
            image = image.to(memory_format=torch.channels_last)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if average is not None and i % 2 == 0:
            average.update_parameters(model)
        first, _ = accuracy(output, target)
        loss_meter.update(loss.item())
        top1.update(first.item(), image.size(0))
        print(f"{i} loss {loss_meter} top 1 {top1} {image.size(0) / (time.time() - start):.0f} images/s", flush=True)


def evaluate(model: nn.Module, criterion: nn.Module, loader: DataLoader[Any]) -> float:
    model.eval()
    top1 = Smoothed()
    with torch.inference_mode():
        for image, target in loader:
            output = model(image.cuda(non_blocking=True))
            loss = criterion(output, target.cuda(non_blocking=True))
            top1.update(accuracy(output, target.cuda())[0].item(), image.shape[0])
    print(f"test loss {loss.item():.3f} top 1 {top1}")
    return top1.total / top1.count


def main(args: argparse.Namespace) -> None:
    torch.backends.cudnn.benchmark = args.benchmark
    training, testing = loaders(args)
    model = torchvision.models.get_model(args.model, num_classes=CLASSES).to("cuda")
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters(recurse=False)]
    known = {id(p) for p in norms}
    others = [p for p in model.parameters() if id(p) not in known]
    optimizer = torch.optim.SGD(
        [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 1e-4}],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(args.epochs - 1, 1))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[1])
    average = Average(model, 0.99, torch.device("cuda")) if args.model_ema else None
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            train_one_epoch(model, average, criterion, optimizer, training, scaler, args)
            scheduler.step()
            evaluate(model, criterion, testing)
            if average is not None:
                evaluate(average, criterion, testing)
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(checkpoint, Path(folder) / "checkpoint.pth")
        loaded = torch.load(Path(folder) / "checkpoint.pth", map_location="cpu", weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    for flag in ("--amp", "--model-ema", "--channels-last", "--benchmark"):
        parser.add_argument(flag, action="store_true")
    main(parser.parse_args())
