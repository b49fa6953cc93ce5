"""The six models, as PyTorch modules with random weights that keep their activations alive, and their export to ONNX.

Weights: each architecture's own initialisation from a fixed seed, a little noise where that leaves all zeros or ones,
then the running statistics of every batch norm are set from random images, so that activations keep their spread from
the first layer to the last and a comparison of outputs says something. Exported by torch.onnx.export (its dynamo path)
in fp32, batch dimension open.
"""

import pathlib
import time

import torch
from torch import nn

import grid

SEED = 20
# Scale of residual branches. At 1, networks of random weights are chaotic: each block makes a rounding error larger,
# and even TF32 is off by percents; trained networks are not so.
RESIDUAL_GAIN = 0.3
# Of the shifts of batch norms, as trained networks have them.
SPREAD_OF_SHIFTS = 0.5
# Of what is added to parameters that begin as one number.
SPREAD_OF_CONSTANTS = 0.02
CALIBRATION_BATCH = 8
CALIBRATION_ROUNDS = 3

SEQUENCE = 128
VOCABULARY = 30522


# The detector: a CSP backbone, pooling pyramid, a neck that goes up and down, three heads. Widths 32 to 512, depths
# 1, 2, 3, 1, 640x640 pixels to 25,200 boxes of 85 numbers.

CLASSES = 80
ANCHORS = 3


def unit(channels_in, channels_out, kernel=1, stride=1, padding=None):
    """Convolution, batch norm, SiLU."""
    pad = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, pad, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out, eps=1e-3), nn.SiLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, channels, shortcut):
        super().__init__()
        self.body = nn.Sequential(unit(channels, channels), unit(channels, channels, 3))
        self.shortcut = shortcut

    def forward(self, x):
        return x + self.body(x) if self.shortcut else self.body(x)


class CrossStage(nn.Module):
    """Two thin branches, one of them deep, joined by a 1x1 convolution."""

    def __init__(self, channels_in, channels_out, depth, shortcut=True):
        super().__init__()
        half = channels_out // 2
        self.deep = nn.Sequential(unit(channels_in, half), *(Residual(half, shortcut) for _ in range(depth)))
        self.flat = unit(channels_in, half)
        self.join = unit(2 * half, channels_out)

    def forward(self, x):
        return self.join(torch.cat([self.deep(x), self.flat(x)], dim=1))


class PyramidPooling(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.squeeze = unit(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.expand = unit(2 * channels, channels)

    def forward(self, x):
        levels = [self.squeeze(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.expand(torch.cat(levels, dim=1))


class Detector(nn.Module):
    WIDTHS = (32, 64, 128, 256, 512)
    DEPTHS = (1, 2, 3, 1)

    def __init__(self):
        super().__init__()
        w0, w1, w2, w3, w4 = self.WIDTHS
        self.stem = unit(3, w0, 6, 2, padding=2)
        widths = list(zip(self.WIDTHS, self.WIDTHS[1:], self.DEPTHS))
        self.stages = nn.ModuleList(nn.Sequential(unit(a, b, 3, 2), CrossStage(b, b, depth)) for a, b, depth in widths)
        self.pyramid = PyramidPooling(w4)
        self.lateral = nn.ModuleList([unit(w4, w3), unit(w3, w2)])
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge_up = nn.ModuleList([CrossStage(w4, w3, 1, False), CrossStage(w3, w2, 1, False)])
        self.down = nn.ModuleList([unit(w2, w2, 3, 2), unit(w3, w3, 3, 2)])
        self.merge_down = nn.ModuleList([CrossStage(w3, w3, 1, False), CrossStage(w4, w4, 1, False)])
        self.heads = nn.ModuleList(nn.Conv2d(width, ANCHORS * (CLASSES + 5), 1) for width in (w2, w3, w4))

    def boxes(self, head, x):
        raw = head(x)
        batch, _, height, width = raw.shape
        fields = raw.reshape(batch, ANCHORS, CLASSES + 5, height, width).permute(0, 1, 3, 4, 2)
        return fields.sigmoid().reshape(batch, ANCHORS * height * width, CLASSES + 5)

    def forward(self, images):
        x = self.stages[0](self.stem(images))
        third = self.stages[1](x)
        fourth = self.stages[2](third)
        fifth = self.pyramid(self.stages[3](fourth))
        top = self.lateral[0](fifth)
        middle = self.lateral[1](self.merge_up[0](torch.cat([self.up(top), fourth], dim=1)))
        fine = self.merge_up[1](torch.cat([self.up(middle), third], dim=1))
        medium = self.merge_down[0](torch.cat([self.down[0](fine), middle], dim=1))
        coarse = self.merge_down[1](torch.cat([self.down[1](medium), top], dim=1))
        return torch.cat([self.boxes(head, x) for head, x in zip(self.heads, (fine, medium, coarse))], dim=1)


class BertBase(nn.Module):
    """BERT-base with its last hidden state alone as output."""

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig(), add_pooling_layer=True)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


@torch.no_grad()
def module(name):
    """The module in evaluation mode on the CPU, always with the same weights."""
    import torchvision.models as vision

    torch.manual_seed(SEED)
    made = {"detector": Detector, "bert_base": BertBase}.get(name) or (lambda: getattr(vision, name)(weights=None))
    made = made().eval()
    for parameter in made.parameters():
        # Biases of 0 and scales of 1, and ViT's last layer: a compiler could leave them out, of trained models it cannot.
        if parameter.min() == parameter.max():
            parameter += torch.randn_like(parameter) * SPREAD_OF_CONSTANTS
    for norm in last_norms(made):
        norm.weight *= RESIDUAL_GAIN
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.bias += torch.randn_like(part.bias) * SPREAD_OF_SHIFTS
    return made


def last_norms(model):
    """The batch norm that ends each residual branch."""
    for part in model.modules():
        if hasattr(part, "bn3"):
            yield part.bn3
        elif getattr(part, "use_res_connect", False):
            yield part.block[-1][1] if hasattr(part, "block") else part.conv[-1]
        elif isinstance(part, Residual) and part.shortcut:
            yield part.body[-1][1]


@torch.no_grad()
def settle(model, name, device):
    """Sets the running statistics of batch norms from random images."""
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    if not norms:
        return model
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the rounds
    for round_number in range(CALIBRATION_ROUNDS):
        model(*inputs(name, CALIBRATION_BATCH, device, seed=1000 + round_number))
    return model.eval()


def inputs(name, batch, device, seed):
    """One set of random inputs in the module's own types."""
    generator = torch.Generator().manual_seed(seed)
    if name == "bert_base":
        ids = torch.randint(0, VOCABULARY, (batch, SEQUENCE), generator=generator)
        return ids.to(device), torch.ones(batch, SEQUENCE, dtype=torch.int64, device=device)
    size = 640 if name == "detector" else 224
    return (torch.randn(batch, 3, size, size, generator=generator).to(device),)


def compared_inputs(name, batch, device):
    """Inputs for comparing outputs: a part of every second sequence is padding, so that a mask that is ignored shows."""
    given = inputs(name, batch, device, seed=77)
    if name == "bert_base":
        given[1][::2, SEQUENCE * 3 // 4 :] = 0
    return given


def input_names(name):
    return ["input_ids", "attention_mask"] if name == "bert_base" else ["images"]


def before_squashing(name, output):
    """The output that is compared: what a final sigmoid was given, where the model ends in one."""
    return torch.logit(output.double().clamp(1e-6, 1 - 1e-6)) if name == "detector" else output.double()


def export(model, name, path):
    """Writes the model and returns the seconds it took. Weights lie in a file beside it."""
    began = time.monotonic()
    device = next(model.parameters()).device
    # A batch of 2: sizes of 1 are taken for constants.
    example = inputs(name, 2, device, seed=1)
    open_batch = {0: torch.export.Dim("batch", min=1, max=1024)}
    torch.onnx.export(
        model,
        example,
        str(path),
        dynamo=True,
        input_names=input_names(name),
        output_names=["output"],
        dynamic_shapes=tuple(open_batch for _ in example),
        external_data=True,
        verbose=False,
    )
    return time.monotonic() - began


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description="Write the models as ONNX files.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=grid.MODELS)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for model_name in chosen.names:
        made = settle(module(model_name), model_name, "cpu")
        count = sum(parameter.numel() for parameter in made.parameters())
        seconds = export(made, model_name, chosen.folder / f"{model_name}.onnx")
        print(f"{model_name}: {count / 1e6:.3f} M parameters, exported in {seconds:.1f} s", flush=True)
