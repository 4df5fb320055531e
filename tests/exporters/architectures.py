"""Small networks as they are written for torch, and the BatchNormalization that has to stay.

Each architecture says, for every BatchNormalization that cannot go, what is in the way on either
side. That is derived by hand from how affines commute with operators, not from what the compiler
does:

- backward, into the layer that makes the data: everything in between has to let scale and shift
  through, and nothing else may read what is in between;
- forward, into the layers that read the result: a shift does not pass an activation, nor zero
  padding, and a scale of both signs passes no activation.

A fold that only trades a BatchNormalization for an Add, of its shift, is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Kept:
    """The obstacles of one BatchNormalization, as reason codes, any of which may be named."""

    behind: str
    ahead: str
    exporters: tuple[str, ...] = ("torchscript", "dynamo")


@dataclass(frozen=True)
class Architecture:
    """How to build the network, the shape of a sample, and what has to stay, by module path."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kept: Mapping[str, Kept] = field(default_factory=dict)


def norm(channels: int, *, sign: int = 0) -> nn.BatchNorm2d:
    """A BatchNormalization whose gammas `settle` makes positive or zero if `sign` is 1."""
    layer = nn.BatchNorm2d(channels)
    layer.sign = sign
    return layer


def conv(into: int, out: int, kernel: int = 3, *, bias: bool = False, **options: int) -> nn.Conv2d:
    """A convolution that keeps the size at stride 1, as backbones have it."""
    return nn.Conv2d(
        into, out, kernel, padding=options.pop("padding", kernel // 2), bias=bias, **options
    )


def conv_norm(
    into: int, out: int, kernel: int = 3, *, activation: nn.Module | None = None, **options: int
) -> nn.Module:
    """Convolution, BatchNormalization, and an activation if there is one."""
    layers = [conv(into, out, kernel, **options), norm(out), *([activation] if activation else [])]
    return nn.Sequential(*layers)


class Plain(nn.Module):
    """VGG: every BatchNormalization directly behind its convolution, with and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv(3, 6), norm(6), nn.ReLU(), nn.MaxPool2d(2),
            conv(6, 8, bias=True), norm(8), nn.LeakyReLU(0.1), nn.AvgPool2d(2),
            conv(8, 8, dilation=2), norm(8), nn.ELU(),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


class BasicBlock(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(into, out, stride=stride), norm(out)
        self.conv2, self.bn2 = conv(out, out), norm(out)
        self.shortcut = conv_norm(into, out, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


class Residual(nn.Module):
    """ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 6, activation=nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(BasicBlock(6, 6, 1), BasicBlock(6, 8, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))


class Depthwise(nn.Module):
    """MobileNetV2: expanded, depthwise, projected, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 4, activation=nn.ReLU6(), stride=2)
        self.expand = conv_norm(4, 12, 1, activation=nn.ReLU6())
        self.spatial = conv_norm(12, 12, activation=nn.ReLU6(), groups=12)
        self.project = conv_norm(12, 4, 1)
        self.last = conv_norm(4, 6, groups=2, activation=nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.last(x + self.project(self.spatial(self.expand(x))))


class SqueezeExcite(nn.Module):
    """MobileNetV3: a gate per channel.

    The BatchNormalization behind the gate goes forward into the projection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 4, activation=nn.Hardswish(), stride=2)
        self.spatial = conv_norm(4, 4, 5, activation=nn.SiLU(), groups=4)
        self.squeeze, self.excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.gated = norm(4)
        self.project = conv_norm(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.spatial(x)
        gate = self.excite(functional.relu(self.squeeze(functional.adaptive_avg_pool2d(y, 1))))
        return x + self.project(self.gated(y * torch.sigmoid(gate)))


class PreActivationBlock(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = norm(into), conv(into, out, stride=stride)
        self.bn2, self.conv2 = norm(out), conv(out, out)
        self.shortcut = conv(into, out, 1, stride=stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return shortcut + self.conv2(functional.relu(self.bn2(self.conv1(y))))


class PreActivation(nn.Module):
    """ResNet v2: if the shortcut is the data, the BatchNormalization before the Relu stays."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 6)
        self.down, self.same = PreActivationBlock(6, 8, 2), PreActivationBlock(8, 8, 1)
        self.last = norm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(
            functional.relu(self.last(self.same(self.down(self.stem(x))))).mean((2, 3))
        )


class DenseLayer(nn.Module):
    def __init__(self, into: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(into), conv(into, 2 * growth, 1)
        self.norm2, self.conv2 = norm(2 * growth), conv(2 * growth, growth)

    def forward(self, features: list[Tensor]) -> Tensor:
        y = self.conv1(functional.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(functional.relu(self.norm2(y)))


class DenseConcat(nn.Module):
    """DenseNet: later concatenations share a feature, so no BatchNormalization can claim it.

    The last BatchNormalization stands behind the transition's pooling, and goes into the
    convolution in front of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.layer1, self.layer2 = DenseLayer(4, 4), DenseLayer(8, 4)
        self.transition, self.reduce = norm(12), conv(12, 6, 1)
        self.pool, self.last = nn.AvgPool2d(2), norm(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in (self.layer1, self.layer2):
            features.append(layer(features))
        y = self.pool(self.reduce(functional.relu(self.transition(torch.cat(features, 1)))))
        return self.head(functional.relu(self.last(y)).mean((2, 3)))


class Branches(nn.Module):
    """Inception: one BatchNormalization behind the concatenation, a slice of it for each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.square = conv(4, 4, 1), conv(4, 6, groups=2, bias=True)
        self.pool, self.pooled = nn.MaxPool2d(3, 1, 1), conv(4, 4, 1)
        self.norm = norm(14)
        self.wide = conv_norm(14, 4, activation=nn.ReLU())
        self.narrow = nn.ModuleList([conv_norm(4, 4, 1), conv_norm(4, 4, 5)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.point(x), self.square(x), self.pooled(self.pool(x))], 1)
        y = self.wide(functional.relu(self.norm(y)))
        return torch.cat([branch(y) for branch in self.narrow], 1)


class Decoder(nn.Module):
    """U-Net: transposed convolutions in groups, a Resize before BatchNormalization, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(3, 4, stride=2, activation=nn.ReLU())
        self.down2 = conv_norm(4, 6, stride=2, activation=nn.ReLU())
        self.up = nn.ConvTranspose2d(
            6, 4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False
        )
        self.up_norm = norm(4)
        self.nearest, self.nearest_norm = (
            nn.Sequential(conv(8, 6), nn.Upsample(scale_factor=2)),
            norm(6),
        )
        smooth = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.bilinear, self.bilinear_norm = nn.Sequential(conv(6, 4), smooth), norm(4)
        self.deep, self.deep_norm = (
            nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1, groups=4),
            norm(4),
        )
        self.out = conv(4, 2, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down1(x)
        y = functional.relu(self.up_norm(self.up(self.down2(skip))))
        y = functional.relu(self.nearest_norm(self.nearest(torch.cat([skip, y], 1))))
        y = functional.relu(self.bilinear_norm(self.bilinear(y)))
        return self.out(functional.relu(self.deep_norm(self.deep(y))))


class Generator(nn.Module):
    """DCGAN: a dense layer read as an image; its BatchNormalization goes through the Reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.norm = nn.Linear(7, 6 * 4 * 4), norm(6)
        self.up1, self.norm1 = nn.ConvTranspose2d(6, 4, 4, 2, 1, bias=False), norm(4)
        self.up2 = nn.ConvTranspose2d(4, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.project(x).view(-1, 6, 4, 4)))
        return torch.tanh(self.up2(functional.relu(self.norm1(self.up1(x)))))


class Mlp(nn.Module):
    """Dense layers: BatchNormalization of the input and behind an activation goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.first, self.norm1 = nn.BatchNorm1d(7), nn.Linear(7, 8), nn.BatchNorm1d(8)
        self.second, self.norm2 = nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(torch.relu(self.norm1(self.first(self.given(x)))))
        return self.last(self.drop(self.norm2(torch.relu(self.second(y)))))


class SharedHeads(nn.Module):
    """EfficientDet: one convolution for all levels, and a BatchNormalization for each."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(conv_norm(i, 4, stride=2, activation=nn.ReLU()) for i in (3, 4))
        self.tower = conv(4, 4, bias=True)
        self.norms = nn.ModuleList(norm(4) for _ in range(2))
        self.predict = conv(4, 6, bias=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for level, norm_ in zip(self.levels, self.norms, strict=True):
            x = level(x)
            found.append(self.predict(functional.silu(norm_(self.tower(x)))))
        return tuple(found)


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight a BatchNormalization in training mode standardises."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(out) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = functional.batch_norm(
            flat, None, None, weight=self.gain, training=True, momentum=0.0, eps=1e-6
        )
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=self.padding)


class Standardised(nn.Module):
    """NFNet: BatchNormalization of a weight, in training mode, leaves it to run time.

    The dynamo exporter writes no training mode: it computes mean and variance of the weight, and
    all of it is constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = StandardisedConv(3, 4), StandardisedConv(4, 4), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.second(functional.gelu(self.first(x)))))


class DomainNorms(nn.Module):
    """Convolutions whose results have several readers.

    Other BatchNormalizations, or whoever calls the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.norm_a, self.norm_b = conv(3, 4), norm(4), norm(4)
        self.features, self.norm_c, self.norm_d = conv(4, 4), norm(4), norm(4)
        self.left, self.right = conv(4, 2, 1), conv(4, 3, 1, bias=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.shared(x)
        features = self.features(functional.relu(self.norm_a(y)) + functional.relu(self.norm_b(y)))
        z = self.norm_d(features)
        return features, functional.relu(self.norm_c(features)), self.left(z), self.right(z)


class PostActivation(nn.Module):
    """BatchNormalization behind the activation.

    Forward, unless a padded convolution reads the shift.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.valid, self.conv2 = conv(3, 4), norm(4), conv(4, 6, padding=0)
        self.padded, self.conv3 = norm(6), conv(6, 4)
        self.pooled, self.pool, self.conv4 = norm(4), nn.AvgPool2d(2), conv(4, 4, 1)
        self.flat, self.head = norm(4), nn.Linear(4 * 7 * 7, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.valid(functional.relu(self.conv1(x))))
        y = self.conv3(self.padded(functional.relu(y)))
        y = self.conv4(self.pool(self.pooled(functional.relu(y))))
        return self.head(self.flat(functional.relu(y)).flatten(1))


class GivenNorm(nn.Module):
    """BatchNormalization of the input, as of images, before a convolution in two groups."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.norm, self.conv = norm(4), conv(4, 6, groups=2, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv(self.norm(x)))


class RepVggBlock(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.square, self.point = (
            conv_norm(into, out, stride=stride),
            conv_norm(into, out, 1, stride=stride),
        )
        self.identity = norm(out) if stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.square(x) + self.point(x)
        return functional.relu(y if self.identity is None else y + self.identity(x))


class RepVgg(nn.Module):
    """RepVGG as trained.

    The branch that is nothing but a BatchNormalization has no layer of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down, self.same = RepVggBlock(3, 4, 2), RepVggBlock(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.down(x))


class Shuffle(nn.Module):
    """ShuffleNet: BatchNormalization behind a channel shuffle, and in one half of a split."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8, activation=nn.ReLU())
        self.group, self.norm = conv(8, 8, 1, groups=2), norm(8)
        self.spatial = conv_norm(8, 8, groups=8)
        self.other = conv_norm(4, 4, activation=nn.ReLU())

    @staticmethod
    def shuffle(x: Tensor, groups: int = 2) -> Tensor:
        batch, channels, height, width = x.shape
        grouped = x.view(batch, groups, channels // groups, height, width)
        return grouped.transpose(1, 2).reshape(batch, channels, height, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = functional.relu(
            x + self.spatial(functional.relu(self.norm(self.shuffle(self.group(x)))))
        )
        left, right = x.chunk(2, 1)
        return self.shuffle(torch.cat([left, self.other(right)], 1))


class Temporal(nn.Module):
    """Sequences: a dense layer per step, convolutions in time, and statistics over time."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.step_norm = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.wide = nn.Sequential(
            nn.Conv1d(6, 6, 3, padding=2, dilation=2, bias=False), nn.BatchNorm1d(6), nn.PReLU(6)
        )
        self.deep = nn.Sequential(nn.Conv1d(6, 6, 3, groups=6), nn.BatchNorm1d(6), nn.ReLU())
        self.point, self.mean_norm = nn.Conv1d(6, 8, 1), nn.BatchNorm1d(8)
        self.last, self.last_norm = nn.Linear(8, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.step_norm(self.step(x).transpose(1, 2)))
        y = self.mean_norm(self.point(self.deep(self.wide(y))).mean(2))
        return self.last_norm(self.last(torch.sigmoid(y)))


class TokenNorm(nn.Module):
    """A dense layer per token, and BatchNormalization of all tokens in a row, as in LeViT."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.linear, self.bn = nn.Linear(into, out, bias=False), nn.BatchNorm1d(out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.bn(y.flatten(0, 1)).reshape_as(y)


class Tokens(nn.Module):
    """LeViT: attention of one head, a residual, and a multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = TokenNorm(6, 4), TokenNorm(6, 4), TokenNorm(6, 4)
        self.out, self.widen, self.narrow = TokenNorm(4, 6), TokenNorm(6, 8), TokenNorm(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.queries(x) @ self.keys(x).transpose(1, 2) / 2, -1)
        x = x + self.out(functional.hardswish(weights @ self.values(x)))
        return x + self.narrow(functional.hardswish(self.widen(x)))


class Video(nn.Module):
    """Convolutions in space and time.

    Both have a bias: torch 2.13's dynamo exporter gives a Conv3d without one a zero bias of rank 2,
    which no runtime takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.space = nn.Sequential(nn.Conv3d(3, 4, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(4))
        self.time = nn.Sequential(
            nn.Conv3d(4, 6, (3, 1, 1), padding=(1, 0, 0), groups=2), nn.BatchNorm3d(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.time(functional.relu(self.space(x)))).mean((2, 3, 4))


class Sums(nn.Module):
    """BatchNormalization behind sums.

    The scale to both convolutions, the shift to one; forward where one is data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm1 = conv(3, 4), conv(3, 4, 1, bias=True), norm(4)
        self.more, self.norm2, self.point = conv(4, 4), norm(4), conv(4, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.left(x) + self.right(x)))
        return self.point(self.norm2(y + self.more(y)))


class PoolNorms(nn.Module):
    """BatchNormalization behind pooling.

    A maximum lets scales pass that are not negative, an average any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.rising = conv(3, 4), nn.MaxPool2d(3, 2, 1), norm(4, sign=1)
        self.conv2, self.mixed = conv(4, 6), norm(6)
        self.conv3, self.average, self.any = (
            conv(6, 4),
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            norm(4),
        )
        self.conv4, self.squeezed = conv(4, 4), norm(4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.rising(self.pool(self.conv1(x))))
        y = functional.relu(self.mixed(self.pool(self.conv2(y))))
        y = functional.relu(self.any(self.average(self.conv3(y))))
        return self.squeezed(functional.adaptive_avg_pool2d(self.conv4(y), 1)).flatten(1)


SIDE = 16
ARCHITECTURES: dict[str, Architecture] = {
    "plain": Architecture(Plain, (3, SIDE, SIDE)),
    "residual": Architecture(Residual, (3, SIDE, SIDE)),
    "depthwise": Architecture(Depthwise, (3, SIDE, SIDE)),
    "squeeze-excite": Architecture(SqueezeExcite, (3, SIDE, SIDE)),
    "pre-activation": Architecture(
        PreActivation,
        (3, SIDE, SIDE),
        {
            "same.bn1": Kept(
                "multi_consumer", "activation_between"
            ),  # the residual sum is the shortcut, too
            "last": Kept(
                "multi_consumer", "activation_between"
            ),  # a branch of its sum is the residual of the block
        },
    ),
    "dense-concat": Architecture(
        DenseConcat,
        (3, SIDE, SIDE),
        {
            name: Kept(
                "multi_consumer", "activation_between"
            )  # all three concatenations read the stem
            for name in ("layer1.norm1", "layer2.norm1", "transition")
        },
    ),
    "branches": Architecture(Branches, (4, SIDE, SIDE)),
    "decoder": Architecture(Decoder, (3, SIDE, SIDE)),
    "generator": Architecture(Generator, (7,)),
    "mlp": Architecture(Mlp, (7,)),
    "shared-heads": Architecture(SharedHeads, (3, SIDE, SIDE)),
    "standardised": Architecture(
        Standardised,
        (3, SIDE, SIDE),
        {
            "first": Kept("training_mode", "training_mode", ("torchscript",)),
            "second": Kept("training_mode", "training_mode", ("torchscript",)),
            "norm": Kept("dynamic_weight", "activation_between", ("torchscript",)),
        },
    ),
    "domain-norms": Architecture(
        DomainNorms,
        (3, SIDE, SIDE),
        {
            "norm_a": Kept("multi_consumer", "activation_between"),
            "norm_b": Kept("multi_consumer", "activation_between"),
            "norm_c": Kept("graph_output", "activation_between"),
        },
    ),
    "post-activation": Architecture(
        PostActivation, (3, SIDE, SIDE), {"padded": Kept("activation_between", "nonzero_padding")}
    ),
    "given-norm": Architecture(lambda: GivenNorm(0), (4, SIDE, SIDE)),
    "given-norm-padded": Architecture(
        lambda: GivenNorm(1),
        (4, SIDE, SIDE),
        {"norm": Kept("no_foldable_neighbour", "nonzero_padding")},
    ),
    "repvgg": Architecture(RepVgg, (3, SIDE, SIDE)),
    "shuffle": Architecture(Shuffle, (3, SIDE, SIDE)),
    "temporal": Architecture(Temporal, (9, 5)),
    "tokens": Architecture(Tokens, (9, 6)),
    "video": Architecture(Video, (3, 5, SIDE // 2, SIDE // 2)),
    "sums": Architecture(Sums, (3, SIDE, SIDE)),
    "pool-norms": Architecture(
        PoolNorms, (3, SIDE, SIDE), {"mixed": Kept("negative_scale", "activation_between")}
    ),
}


def settle(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model for inference, its BatchNormalizations as after training.

    Gammas have both signs and one in six is zero; means and variances are those of data that is not
    centred, through all layers in front, and then somewhat off.
    """
    norms = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    with torch.no_grad():
        for layer in norms:
            count = torch.arange(layer.num_features)
            sign = 1.0 if getattr(layer, "sign", 0) else torch.where(count % 3 == 1, -1.0, 1.0)
            layer.weight.copy_((torch.rand(len(count)) * 1.2 + 0.3) * sign * (count % 6 != 3))
            layer.bias.copy_(torch.randn(len(count)) / 2)
            layer.momentum = 1.0
        model.train()(torch.randn(16, *shape) * 2 + 3)
        for layer in norms:
            layer.momentum = 0.1
            layer.running_mean.add_(layer.running_var.sqrt() * torch.randn(layer.num_features) / 3)
            layer.running_var.mul_(torch.exp(torch.randn(layer.num_features) / 2))
    return model.eval()
