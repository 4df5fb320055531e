"""Export networks with open dimensions, on which `cleanup.py` compares irc and the other tools.

    python benchmarks/open_exports.py .venv-open/models

Every network has random weights and is exported twice: by dynamo with `optimize=False`, and by
TorchScript. What is in the folder already is not exported again. An export that fails, that is of
fixed shape, or that takes too long, is left out with a line on stderr.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import tools

SIDE, TOKENS, SAMPLES, VOCABULARY = 64, 16, 4000, 99
PATIENCE = 240.0
"""Seconds for an export."""

OPSETS = {"torchscript": 17, "dynamo": 18}
"""The exporters with the opsets that they write."""


@dataclass(frozen=True)
class Network:
    """`build` makes a module and its inputs; each input has the extents along `axes` open."""

    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    axes: tuple[int, ...] = (0,)


def timm(name: str, side: int = SIDE) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """Return the builder of a network of timm."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import timm
        import torch

        options = {} if side == SIDE else {"img_size": side}
        try:
            model = timm.create_model(name, num_classes=10, **options)
        except TypeError:
            model = timm.create_model(name, num_classes=10)
        return model, (torch.randn(2, 3, side, side),)

    return build


def vision(name: str, **options: Any) -> Callable[[], Any]:
    """Return the builder of a network of torchvision."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import torchvision

        model = torchvision.models.get_model(name, weights=None, **options)
        return model, (torch.randn(2, 3, SIDE, SIDE),)

    return build


def text(kind: str, name: str, **options: Any) -> Callable[[], Any]:
    """Return the builder of a small network of transformers that reads words."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import transformers

        small = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 128,
        }
        config = getattr(transformers, f"{kind}Config")(**{**small, **options})
        config.use_cache = False
        config._attn_implementation = "eager"
        model = getattr(transformers, name)(config)
        words = torch.randint(3, VOCABULARY, (2, TOKENS))
        return of_words(model), (words, torch.ones_like(words))

    return build


def audio(kind: str, name: str, **options: Any) -> Callable[[], Any]:
    """Return the builder of a small network of transformers that reads a waveform."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            conv_dim=(32, 32, 32),
            conv_kernel=(10, 3, 3),
            conv_stride=(5, 2, 2),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            attn_implementation="eager",
            **options,
        )
        return of_one_input(getattr(transformers, name)(config)), (torch.randn(2, SAMPLES),)

    return build


def pictures(kind: str, name: str, **options: Any) -> Callable[[], Any]:
    """Return the builder of a small network of transformers that reads pictures."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import transformers

        config = getattr(transformers, f"{kind}Config")(attn_implementation="eager", **options)
        return of_one_input(getattr(transformers, name)(config)), (torch.randn(2, 3, SIDE, SIDE),)

    return build


def of_words(model: Any) -> Any:
    """Return a module of the first result of a model for words and a mask."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]

    return Wrapped()


def of_one_input(model: Any) -> Any:
    """Return a module of the first result of a model of one input."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x)[0]

    return Wrapped()


def recurrent(kind: str) -> Callable[[], Any]:
    """Return the builder of two layers of LSTM or GRU and a Linear."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch

        class Recurrent(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = getattr(torch.nn, kind)(8, 16, 2, batch_first=True)
                self.head = torch.nn.Linear(16, 5)

            def forward(self, x: Any) -> Any:
                return self.head(self.layers(x)[0][:, -1])

        return Recurrent(), (torch.randn(2, TOKENS, 8),)

    return build


def encoder() -> tuple[Any, tuple[Any, ...]]:
    """Build two layers of torch.nn.TransformerEncoder."""
    import torch

    torch.backends.mha.set_fastpath_enabled(False)  # it is no operator that exporters know
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (
        torch.randn(2, TOKENS, 32),
    )


def yolo() -> tuple[Any, tuple[Any, ...]]:
    """Build a detector like YOLO: split stages, pools in a row, two grids of boxes."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Unit(nn.Sequential):
        def __init__(self, into: int, out: int, size: int, stride: int = 1) -> None:
            conv = nn.Conv2d(into, out, size, stride, size // 2, bias=False)
            super().__init__(conv, nn.BatchNorm2d(out), nn.SiLU())

    class Stage(nn.Module):
        def __init__(self, into: int, out: int) -> None:
            super().__init__()
            self.first, self.last = Unit(into, out, 1), Unit(3 * out // 2, out, 1)
            self.inner = nn.Sequential(Unit(out // 2, out // 2, 3), Unit(out // 2, out // 2, 3))

        def forward(self, x: Any) -> Any:
            parts = list(self.first(x).chunk(2, 1))
            parts.append(parts[-1] + self.inner(parts[-1]))
            return self.last(torch.cat(parts, 1))

    class Head(nn.Module):
        def __init__(self, channels: int, stride: int) -> None:
            super().__init__()
            self.box = nn.Sequential(Unit(channels, 16, 3), nn.Conv2d(16, 4, 1))
            self.kind = nn.Sequential(Unit(channels, 16, 3), nn.Conv2d(16, 3, 1))
            self.stride = stride

        def forward(self, x: Any) -> Any:
            height, width = x.shape[2:]
            rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
            grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).view(1, 2, -1)
            start, end = self.box(x).flatten(2).chunk(2, 1)
            low, high = grid - start, grid + end
            box = torch.cat(((low + high) / 2, high - low), 1) * self.stride
            return torch.cat((box, self.kind(x).flatten(2).sigmoid()), 1)

    class Yolo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(Unit(3, 8, 3, 2), Unit(8, 16, 3, 2), Stage(16, 16))
            self.middle = nn.Sequential(Unit(16, 32, 3, 2), Stage(32, 32))
            self.deep = nn.Sequential(Unit(32, 32, 3, 2), Stage(32, 32), Unit(32, 16, 1))
            self.pooled, self.joined = Unit(64, 32, 1), Stage(64, 32)
            self.heads = nn.ModuleList([Head(32, 8), Head(32, 16)])

        def forward(self, x: Any) -> Any:
            middle = self.middle(self.stem(x))
            pools = [self.deep(middle)]
            for _ in range(3):
                pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
            deep = self.pooled(torch.cat(pools, 1))
            upper = functional.interpolate(deep, scale_factor=2.0)
            upper = self.joined(torch.cat((upper, middle), 1))
            boxes = [head(y) for head, y in zip(self.heads, (upper, deep), strict=True)]
            return torch.cat(boxes, 2)

    return Yolo(), (torch.randn(2, 3, SIDE, SIDE),)


def detector() -> tuple[Any, tuple[Any, ...]]:
    """Build YOLO for one picture, with NonMaxSuppression of its boxes."""
    import torch

    model, _ = yolo()

    class Detector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            found = self.model(x)[0]
            (centres, sizes), (scores, kinds) = found[:4].view(2, 2, -1), found[4:].max(0)
            boxes = torch.cat((centres - sizes / 2, centres + sizes / 2)).T
            kept = torch.ops.torchvision.nms(boxes, scores, 0.5)[:100]
            return boxes[kept], scores[kept], kinds[kept]

    return Detector(), (torch.randn(1, 3, SIDE, SIDE),)


def provide_nms() -> None:
    """Define torchvision's non-maximum suppression where its library is for another torch."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        library.impl("nms", _nms, "CPU")
        LIBRARIES.append(library)
        import torchvision.ops  # noqa: F401


LIBRARIES: list[Any] = []
"""Definitions of operators, which last as long as these objects."""


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:
    """Return the indices of the boxes that no better one overlaps by more than the threshold."""
    import torch

    left = scores.argsort(descending=True).tolist()
    kept = []
    while left:
        best, *left = left
        kept.append(best)
        rest = boxes[left]
        low, high = (
            torch.maximum(rest[:, :2], boxes[best, :2]),
            torch.minimum(rest[:, 2:], boxes[best, 2:]),
        )
        common = (high - low).clamp(min=0).prod(1)
        areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (rest, boxes[best])]
        overlap = common / (areas[0] + areas[1] - common)
        left = [i for i, share in zip(left, overlap.tolist(), strict=True) if share <= threshold]
    return torch.tensor(kept, dtype=torch.long)


SPATIAL = (0, 2, 3)
WORDS = (0, 1)
FIXED_SIDE = {
    "vit_tiny_patch16_224": 64,
    "deit_tiny_patch16_224": 64,
    "swin_tiny_patch4_window7_224": 224,
    "levit_128s": 224,
    "efficientformerv2_s0": 224,
    "mobilevit_xxs": 64,
    "crossvit_tiny_240": 240,
    "mixer_s32_224": 224,
    "gmixer_12_224": 224,
    "visformer_tiny": 224,
}
"""Networks of timm with an open batch alone, and the side of their pictures."""

CONVOLUTIONAL = (
    *("resnet18", "legacy_seresnet18", "resnest14d", "res2net50_14w_8s", "densenet121", "dla46_c"),
    *("mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_lite0", "mnasnet_small"),
    *("regnetx_002", "regnety_002", "repvgg_a0", "mobileone_s0", "ghostnet_050", "lcnet_050"),
    *("tinynet_e", "hardcorenas_a", "hrnet_w18_small", "convnext_atto", "convnextv2_atto"),
    *("edgenext_xx_small", "fastvit_t8", "poolformer_s12", "pvt_v2_b0", "inception_v3"),
)
"""Networks of timm with open batch, height and width."""

NETWORKS = {
    "LSTM": Network(recurrent("LSTM"), WORDS),
    "GRU": Network(recurrent("GRU"), WORDS),
    "YOLO": Network(yolo, SPATIAL),
    "TransformerEncoder": Network(encoder, WORDS),
    "BERT": Network(text("Bert", "BertModel"), WORDS),
    "RoBERTa": Network(text("Roberta", "RobertaModel"), WORDS),
    "ALBERT": Network(text("Albert", "AlbertModel", embedding_size=16), WORDS),
    "ELECTRA": Network(text("Electra", "ElectraModel", embedding_size=16), WORDS),
    "DistilBERT": Network(
        text("DistilBert", "DistilBertModel", dim=32, hidden_dim=64, n_layers=2, n_heads=4), WORDS
    ),
    "DeBERTa": Network(
        text(
            "DebertaV2",
            "DebertaV2Model",
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=8,
        ),
        WORDS,
    ),
    "GPT-2": Network(text("GPT2", "GPT2Model", n_embd=32, n_layer=2, n_head=4), WORDS),
    "Llama": Network(text("Llama", "LlamaModel", num_key_value_heads=2), WORDS),
    "Mistral": Network(text("Mistral", "MistralModel", num_key_value_heads=2), WORDS),
    "Qwen2": Network(text("Qwen2", "Qwen2Model", num_key_value_heads=2), WORDS),
    "OPT": Network(text("OPT", "OPTModel", ffn_dim=64, word_embed_proj_dim=32), WORDS),
    "T5": Network(
        text("T5", "T5EncoderModel", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4), WORDS
    ),
    "wav2vec 2.0": Network(audio("Wav2Vec2", "Wav2Vec2Model"), WORDS),
    "HuBERT": Network(audio("Hubert", "HubertModel"), WORDS),
    "SegFormer": Network(
        pictures(
            "Segformer",
            "SegformerForSemanticSegmentation",
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            decoder_hidden_size=32,
        ),
        SPATIAL,
    ),
    "ViT of transformers": Network(
        pictures(
            "ViT",
            "ViTModel",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=SIDE,
        )
    ),
    "ShuffleNetV2": Network(vision("shufflenet_v2_x0_5"), SPATIAL),
    "SqueezeNet": Network(vision("squeezenet1_1"), SPATIAL),
    "GoogLeNet": Network(vision("googlenet", init_weights=False, aux_logits=False), SPATIAL),
    "LR-ASPP": Network(vision("lraspp_mobilenet_v3_large", weights_backbone=None), SPATIAL),
    "YOLO with boxes": Network(detector, (2, 3)),
    **{name: Network(timm(name), SPATIAL) for name in CONVOLUTIONAL},
    **{name: Network(timm(name, side)) for name, side in FIXED_SIDE.items()},
}


def export(name: str, exporter: str, out: Path) -> None:
    """Write the export of a network. Raises ValueError if no extent of an input is open."""
    import onnx
    import torch

    warnings.simplefilter("ignore")
    provide_nms()
    torch.manual_seed(0)
    network = NETWORKS[name]
    model, inputs = network.build()
    for module in model.eval().modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                torch.nn.init.uniform_(tensor, 0.5, 2)
            for tensor in (module.bias, module.running_mean):
                torch.nn.init.uniform_(tensor, -1, 1)
    made = out.with_suffix(".part")
    options: dict[str, Any] = {"opset_version": OPSETS[exporter]}
    if exporter == "dynamo":
        auto = torch.export.Dim.AUTO  # type: ignore[attr-defined]
        options |= {
            "dynamo": True,
            "optimize": False,
            "external_data": False,
            "dynamic_shapes": tuple(dict.fromkeys(network.axes, auto) for _ in inputs),
            "verbose": False,
        }
    else:
        names = [f"x{i}" for i in range(len(inputs))]
        axes = {axis: f"d{axis}" for axis in network.axes}
        options |= {
            "dynamo": False,
            "input_names": names,
            "dynamic_axes": dict.fromkeys(names, axes),
        }
    with torch.no_grad():
        torch.onnx.export(model, inputs, str(made), **options)
    graph = onnx.load(made).graph
    if not any(dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim):
        raise ValueError("no extent of an input is open")
    made.rename(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Export what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the exports")
    parser.add_argument("--only", default="", metavar="TEXT", help="names that contain this text")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    child = tools.Child(PATIENCE)
    wanted = [(name, exporter) for exporter in OPSETS for name in NETWORKS]
    for name, exporter in track(wanted, "exports", console=Console(stderr=True), transient=True):
        out = options.folder / f"{name}, {exporter}.onnx"
        if out.exists() or options.only not in out.stem:
            continue
        try:
            child.call(export, name, exporter, out)
        except tools.Failure as failure:
            print(f"{out.stem} left out: {failure.kind}: {failure}", file=sys.stderr)


if __name__ == "__main__":
    main()
