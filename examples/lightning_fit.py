"""A Lightning Trainer: wrap it, or pass memscale.integrations.MemScaleCallback(config) as a callback."""

import lightning
import torch
from tell import tell
from torch import nn

import memscale


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)])
        self.last = 0.0

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.last = loss.item()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(wrapped):
    torch.manual_seed(0)
    module = Module()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6144, 128)), batch_size=2048)
    callback = memscale.integrations.MemScaleCallback(memscale.Config(force_optimize=True))
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False,
                                callbacks=[callback] if wrapped else [])  # fmt: skip
    trainer.fit(module, data)
    tell("memscale" if wrapped else "plain", module.last)
    if wrapped:
        print(f"          {callback.executor.counters()['recomputed_layers']} layers ran again in backward")


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
