"""A module trained by Lightning's Trainer: 16-bit precision, accumulation, clipping, averaged
weights, validation, checkpoints.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers: list[nn.Module] = []
        channels = 3
        for stage in range(4):
            next_channels = width * 2**stage
            layers += [nn.Conv2d(channels, next_channels, 3, 2, 1), nn.BatchNorm2d(next_channels), nn.GELU()]
            channels = next_channels
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network(images)
        return result

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss: torch.Tensor = self.criterion(self(images), labels)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        output = self(images)
        self.log("val_loss", self.criterion(output, labels), sync_dist=True)
        self.log("val_accuracy", (output.argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(count: int, batch: int, shuffle: bool) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(count, 3, 64, 64), torch.randint(10, (count,)))
    return DataLoader(data, batch, shuffle=shuffle, num_workers=1, pin_memory=True, persistent_workers=True)


def main(args: argparse.Namespace) -> None:
    lightning.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = ModelCheckpoint(f"{folder}/best", monitor="val_loss", save_last=True)
        callbacks: list[Any] = [checkpoints, LearningRateMonitor("step")]
        if args.devices == 1:
            callbacks.append(EMAWeightAveraging(decay=0.99))
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=args.devices,
            strategy=args.strategy,
            precision=args.precision,
            max_epochs=2,
            accumulate_grad_batches=2,
            gradient_clip_val=1.0,
            log_every_n_steps=1,
            logger=CSVLogger(folder),
            callbacks=callbacks,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Classifier(args.width)
        trainer.fit(model, loader(args.batch_size * 8, args.batch_size, True), loader(args.batch_size * 2, 64, False))
        print({name: float(value) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    main(parser.parse_args())
