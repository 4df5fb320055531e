"""Small transformers and mobile networks with the idioms of the originals, which runtimes fuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from exporters.architectures import conv, norm

WIDTH, HEADS, HIDDEN, WORDS = 16, 2, 32, 24
SIZE = WIDTH // HEADS
TOKENS, SIDE = 6, 16


@dataclass(frozen=True)
class Fusible:
    """`build` makes the network, `sample` its inputs, in the order of the arguments.

    `opset` is the older one in which it is exported too, with open extents along `open_axes` of
    every input.
    """

    build: Callable[[], nn.Module]
    sample: Callable[[], tuple[Tensor, ...]]
    opset: int = 14
    open_axes: tuple[str, ...] = ("batch",)


def images() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, SIDE, SIDE),)


def words() -> tuple[Tensor, ...]:
    return (torch.randint(0, WORDS, (2, TOKENS)),)


def masked_words() -> tuple[Tensor, ...]:
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, -2:] = 0
    return (*words(), mask)


def hidden_tokens() -> tuple[Tensor, ...]:
    return (torch.randn(2, TOKENS, WIDTH),)


def heads(x: Tensor, count: int = HEADS) -> Tensor:
    """[batch, tokens, width] as [batch, heads, tokens, size]."""
    return x.view(x.shape[0], x.shape[1], count, SIZE).permute(0, 2, 1, 3)


def joined(x: Tensor) -> Tensor:
    """The inverse of `heads`."""
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(x.shape[0], x.shape[1], WIDTH)


def causal(tokens: int) -> Tensor:
    return torch.tril(torch.ones(tokens, tokens, dtype=torch.bool))


class Dense(nn.Linear):
    """A dense layer as a product and a sum, the form in which onnxruntime knows attention."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class BertLayer(nn.Module):
    """Attention that divides its scores, and a normalization behind each sum."""

    def __init__(self, layer: type[nn.Linear]) -> None:
        super().__init__()
        self.query, self.key, self.value = (layer(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = (
            layer(WIDTH, WIDTH),
            layer(WIDTH, HIDDEN),
            layer(HIDDEN, WIDTH),
        )
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = (
            heads(self.query(x)) @ heads(self.key(x)).transpose(-1, -2) / math.sqrt(SIZE) + mask
        )
        y = joined(torch.softmax(scores, 3) @ heads(self.value(x)))
        x = self.norm1(self.out(y) + x)
        return self.norm2(self.down(functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    """Embeddings of words, positions and types; a mask that is added."""

    def __init__(self, layer: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.norm, self.layers = (
            nn.LayerNorm(WIDTH),
            nn.ModuleList(BertLayer(layer) for _ in range(2)),
        )
        self.pool = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(words) + self.positions(torch.arange(words.shape[1])))
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        for layer in self.layers:
            x = layer(x, added)
        return torch.tanh(self.pool(x[:, 0]))


class Gpt2(nn.Module):
    """One product for queries, keys and values, scores by Where, and Gelu by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.norm1, self.norm2, self.last = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.register_buffer("causal", causal(TOKENS))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        query, key, value = (heads(part) for part in self.attend(self.norm1(x)).split(WIDTH, 2))
        scores = query @ key.transpose(-1, -2) / value.size(-1) ** 0.5
        scores = torch.where(self.causal, scores, torch.full([], -3.4e38))
        x = x + self.out(joined(torch.softmax(scores, -1) @ value))
        y = self.up(self.norm2(x))
        y = (
            0.5
            * y
            * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        )
        return self.last(x + self.down(y)) @ self.words.weight.T


class GeluTanh(nn.Module):
    """The Gelu by tanh of torch, between dense layers and behind a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, HIDDEN),
            nn.Linear(HIDDEN, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh") * 1.25)


class ClipText(nn.Module):
    """Queries that are scaled, a causal mask that is added, and the quick Gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm1, self.norm2 = (
            nn.Embedding(WORDS, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, HIDDEN),
            nn.Linear(HIDDEN, WIDTH),
        )
        self.register_buffer("mask", torch.full((TOKENS, TOKENS), -1e4).triu(1))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        y = self.norm1(x)
        query, key, value = (
            heads(self.query(y) * SIZE**-0.5),
            heads(self.key(y)),
            heads(self.value(y)),
        )
        x = x + self.out(
            joined(torch.softmax(query @ key.transpose(-1, -2) + self.mask, -1) @ value)
        )
        y = self.up(self.norm2(x))
        return x + self.down(y * torch.sigmoid(1.702 * y))


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight, computed in f32 as LLaMA does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class Llama(nn.Module):
    """Rotary embedding, keys and values that two queries share, and a product with SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm1, self.norm2, self.last = (
            nn.Embedding(WORDS, WIDTH),
            RmsNorm(),
            RmsNorm(),
            RmsNorm(),
        )
        self.query, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.key, self.value = (
            nn.Linear(WIDTH, SIZE, bias=False),
            nn.Linear(WIDTH, SIZE, bias=False),
        )
        self.gate, self.up = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(WIDTH, HIDDEN, bias=False),
        )
        self.down, self.head = (
            nn.Linear(HIDDEN, WIDTH, bias=False),
            nn.Linear(WIDTH, WORDS, bias=False),
        )
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, SIZE, 2) / SIZE))
        self.register_buffer("causal", torch.full((TOKENS, TOKENS), -1e9).triu(1))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        positions = torch.arange(words.shape[1])[None, None, :].to(torch.float32)
        angles = (self.frequencies[None, :, None] @ positions).transpose(1, 2)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        y = self.norm1(x)
        query, key, value = heads(self.query(y)), heads(self.key(y), 1), heads(self.value(y), 1)
        query, key = query * cos + rotate_half(query) * sin, key * cos + rotate_half(key) * sin
        key, value = (
            kv[:, :, None].expand(-1, -1, HEADS, -1, -1).reshape(-1, HEADS, TOKENS, SIZE)
            for kv in (key, value)
        )
        scores = query @ key.transpose(2, 3) * SIZE**-0.5 + self.causal
        x = x + self.out(joined(torch.softmax(scores, -1) @ value))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.head(self.last(x))


class VitBlock(nn.Module):
    """torch's own attention, and a Gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = (
            self.attend(self.norm1(x))
            .reshape(x.shape[0], -1, 3, HEADS, SIZE)
            .permute(2, 0, 3, 1, 4)
        )
        y = functional.scaled_dot_product_attention(*y.unbind(0))
        x = x + self.out(joined(y))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """Patches by a convolution, a token of the class, positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions, self.blocks = (
            nn.Parameter(torch.randn(1, 17, WIDTH)),
            nn.Sequential(VitBlock(), VitBlock()),
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Swin(nn.Module):
    """Attention in shifted windows of 2x2, with a bias of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm1, self.norm2 = (
            nn.Conv2d(3, WIDTH, 4, 4),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.table = nn.Parameter(torch.randn(9, HEADS))
        self.register_buffer("index", torch.randint(0, 9, (16,)))
        self.merged, self.merge = nn.LayerNorm(4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        y = torch.roll(self.norm1(x), (-1, -1), (1, 2))
        y = y.view(-1, 2, 2, 2, 2, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, WIDTH)
        query, key, value = (
            self.attend(y).reshape(-1, 4, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
        )
        bias = self.table[self.index].view(4, 4, HEADS).permute(2, 0, 1).contiguous()
        scores = (query * SIZE**-0.5) @ key.transpose(-2, -1) + bias.unsqueeze(0)
        y = self.out(joined(torch.softmax(scores, -1) @ value))
        y = y.view(-1, 2, 2, 2, 2, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4, WIDTH)
        x = x + torch.roll(y, (1, 1), (1, 2))
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        quarters = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        return self.merge(self.merged(torch.cat(quarters, -1)))


class ChannelsFirstNorm(nn.Module):
    """LayerNormalization along the channels of an image, as ConvNeXt has it between stages."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.rand(channels) + 0.5),
            nn.Parameter(torch.randn(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(1, keepdim=True)
        x = centered / torch.sqrt(centered.pow(2).mean(1, keepdim=True) + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNext(nn.Module):
    """A depthwise convolution, LayerNormalization with channels last, and a scale of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, WIDTH, 4, 4), ChannelsFirstNorm(WIDTH)
        self.depthwise, self.norm = (
            conv(WIDTH, WIDTH, 7, groups=WIDTH, bias=True),
            nn.LayerNorm(WIDTH),
        )
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.1)
        self.between, self.reduce = ChannelsFirstNorm(WIDTH), nn.Conv2d(WIDTH, WIDTH, 2, 2)
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x))
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        x = self.reduce(self.between(x + y.permute(0, 3, 1, 2)))
        return self.head(self.last(x.mean((-2, -1))))


class Excite(nn.Module):
    """Squeeze and excite, with the activations given."""

    def __init__(self, channels: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.inner, self.gate = inner, gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(
            self.excite(self.inner(self.squeeze(functional.adaptive_avg_pool2d(x, 1))))
        )


def inverted(
    into: int, out: int, act: Callable[[], nn.Module], excite: Excite | None
) -> nn.Sequential:
    """An inverted residual of MobileNetV3 and EfficientNet, without the sum."""
    wide = 2 * into
    parts = [
        conv(into, wide, 1),
        norm(wide),
        act(),
        conv(wide, wide, 3, groups=wide),
        norm(wide),
        act(),
    ]
    return nn.Sequential(
        *parts, *([] if excite is None else [excite]), conv(wide, out, 1), norm(out)
    )


class MobileNetV3(nn.Module):
    """HardSwish, and squeeze and excite by HardSigmoid."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.Hardswish
        self.stem = nn.Sequential(conv(3, 8, 3, stride=2), norm(8), act())
        self.block1 = inverted(8, 8, act, Excite(16, nn.ReLU(), nn.Hardsigmoid()))
        self.block2 = inverted(8, 12, act, Excite(16, nn.ReLU(), nn.Hardsigmoid()))
        self.last = nn.Sequential(conv(12, 24, 1), norm(24), act())
        self.dense, self.head = nn.Linear(24, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.last(self.block2(x + self.block1(x))).mean((2, 3))
        return self.head(functional.hardswish(self.dense(x)))


class WrittenHardSwish(nn.Module):
    """x * relu6(x + 3) / 6, as MobileNetV3 was first written."""

    def forward(self, x: Tensor) -> Tensor:
        return x * functional.relu6(x + 3) / 6


class WrittenHardSigmoid(nn.Module):
    """relu6(x + 3) / 6"""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu6(x + 3) / 6


class WrittenMobileNetV3(nn.Module):
    """MobileNetV3 with its activations written out."""

    def __init__(self) -> None:
        super().__init__()
        act = WrittenHardSwish
        self.stem = nn.Sequential(conv(3, 8, 3, stride=2), norm(8), act())
        self.block = inverted(8, 8, act, Excite(16, nn.ReLU(), WrittenHardSigmoid()))
        self.last = nn.Sequential(conv(8, 24, 1), norm(24), act())
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.last(x + self.block(x)).mean((2, 3)))


class EfficientNet(nn.Module):
    """SiLU, and squeeze and excite by Sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        self.stem = nn.Sequential(conv(3, 8, 3, stride=2), norm(8), act())
        self.block1 = inverted(8, 8, act, Excite(16, nn.SiLU(), nn.Sigmoid()))
        self.block2 = inverted(8, 12, act, Excite(16, nn.SiLU(), nn.Sigmoid()))
        self.last, self.head = nn.Sequential(conv(12, 24, 1), norm(24), act()), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.last(self.block2(x + self.block1(x))).mean((2, 3)))


def unit(
    into: int, out: int, size: int, act: Callable[[], nn.Module], stride: int = 1
) -> nn.Sequential:
    return nn.Sequential(conv(into, out, size, stride=stride), norm(out), act())


class Stage(nn.Module):
    """Two branches, one with a residual, that are concatenated."""

    def __init__(self, channels: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        half = channels // 2
        self.left, self.right = unit(channels, half, 1, act), unit(channels, half, 1, act)
        self.inner1, self.inner2 = unit(half, half, 1, act), unit(half, half, 3, act)
        self.join = unit(channels, channels, 1, act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.right(x)
        return self.join(torch.cat((self.left(x), y + self.inner2(self.inner1(y))), 1))


class Yolo(nn.Module):
    """SiLU, pooling of several sizes, an upsampling and boxes of a grid."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        self.stem, self.down, self.deep = (
            unit(3, 8, 3, act, 2),
            unit(8, 16, 3, act, 2),
            unit(16, 16, 3, act, 2),
        )
        self.stage1, self.stage2, self.fuse = Stage(16, act), Stage(16, act), unit(64, 16, 1, act)
        self.join, self.head = unit(32, 16, 1, act), nn.Conv2d(16, 6, 1)
        self.register_buffer(
            "grid",
            torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))[None],
        )

    def forward(self, x: Tensor) -> Tensor:
        small = self.stage1(self.down(self.stem(x)))
        y = self.stage2(self.deep(small))
        pools = [y]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 3, 1, 1))
        y = functional.interpolate(self.fuse(torch.cat(pools, 1)), scale_factor=2.0, mode="nearest")
        y = torch.sigmoid(self.head(self.join(torch.cat((y, small), 1))))
        centres = (y[:, :2] * 2 - 0.5 + self.grid) * 4.0
        sizes = (y[:, 2:4] * 2) ** 2 * 10.0
        return torch.cat((centres, sizes, y[:, 4:]), 1).flatten(2)


class YoloV4(nn.Module):
    """Mish, by torch's operator and written out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = unit(3, 8, 3, nn.Mish, 2), unit(8, 16, 3, nn.Mish, 2)
        self.stage, self.conv, self.norm = Stage(16, nn.Mish), conv(16, 16, 3), norm(16)
        self.head = nn.Conv2d(16, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(self.stage(self.down(self.stem(x)))))
        return self.head(x * torch.tanh(functional.softplus(x)))


class T5(nn.Module):
    """RMSNormalization, scores without a scale but with a bias, and a gated Gelu by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = (
            nn.Embedding(WORDS, WIDTH),
            nn.Parameter(torch.randn(1, HEADS, TOKENS, TOKENS)),
        )
        self.norm1, self.norm2, self.last = RmsNorm(), RmsNorm(), RmsNorm()
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.gate, self.up = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(WIDTH, HIDDEN, bias=False),
        )
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        y = self.norm1(x)
        scores = heads(self.query(y)) @ heads(self.key(y)).transpose(3, 2) + self.bias
        x = x + self.out(joined(torch.softmax(scores, -1) @ heads(self.value(y))))
        y = self.norm2(x)
        gate = self.gate(y)
        gate = (
            0.5
            * gate
            * (
                1.0
                + torch.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * torch.pow(gate, 3.0)))
            )
        )
        x = self.last(x + self.down(gate * self.up(y)))
        return x * WIDTH**-0.5 @ self.words.weight.T


class MobileVit(nn.Module):
    """Convolutions with SiLU around a transformer of the pixels of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.local = unit(3, 8, 3, nn.SiLU, 4), unit(8, 8, 3, nn.SiLU)
        self.into, self.out, self.join = (
            conv(8, WIDTH, 1),
            unit(WIDTH, 8, 1, nn.SiLU),
            unit(16, 8, 3, nn.SiLU),
        )
        self.block, self.norm, self.head = VitBlock(), nn.LayerNorm(WIDTH), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.into(self.local(x))
        y = y.reshape(-1, WIDTH, 2, 2, 2, 2).permute(0, 3, 5, 2, 4, 1).reshape(-1, 4, WIDTH)
        y = self.norm(self.block(y))
        y = y.reshape(-1, 2, 2, 2, 2, WIDTH).permute(0, 5, 3, 1, 4, 2).reshape(-1, WIDTH, 4, 4)
        return self.head(self.join(torch.cat((x, self.out(y)), 1)).mean((2, 3)))


class Whisper(nn.Module):
    """An encoder of sound.

    Two convolutions with Gelu, queries and keys that are both scaled, keys without a bias.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(5, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.positions, self.norm1, self.norm2 = (
            nn.Parameter(torch.randn(6, WIDTH)),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = (
            functional.gelu(self.conv2(functional.gelu(self.conv1(x)))).permute(0, 2, 1)
            + self.positions
        )
        y, scale = self.norm1(x), SIZE**-0.25
        scores = (heads(self.query(y)) * scale) @ (heads(self.key(y)).transpose(2, 3) * scale)
        x = x + self.out(joined(torch.softmax(scores, -1) @ heads(self.value(y))))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


FUSIBLE: dict[str, Fusible] = {
    "BERT": Fusible(Bert, masked_words, 12, ("batch", "tokens")),
    "BERT as products and sums": Fusible(
        lambda: Bert(Dense), masked_words, 12, ("batch", "tokens")
    ),
    "GPT-2": Fusible(Gpt2, words),
    "Gelu by tanh": Fusible(GeluTanh, hidden_tokens),
    "CLIP text": Fusible(ClipText, words),
    "LLaMA": Fusible(Llama, words),
    "T5": Fusible(T5, words),
    "Whisper": Fusible(Whisper, lambda: (torch.randn(1, 5, 12),)),
    "ViT": Fusible(Vit, images),
    "Swin": Fusible(Swin, images),
    "ConvNeXt": Fusible(ConvNext, images),
    "MobileViT": Fusible(MobileVit, images),
    "MobileNetV3": Fusible(MobileNetV3, images),
    "MobileNetV3, written out": Fusible(WrittenMobileNetV3, images),
    "EfficientNet": Fusible(EfficientNet, images),
    "YOLO": Fusible(Yolo, images),
    "YOLOv4": Fusible(YoloV4, images),
}
