"""Convolutional models: text, images, volumes, and generators."""

import torch
from torch import nn

from support.models import Custom
from support.zoo import WORDS, Entry, numbers, words


def pooled(layer, channels=4):
    """A convolution, an activation, a mean over places and a head."""
    return Custom(
        lambda m, x: m.head(torch.tanh(m.layer(x)).flatten(2).mean(2)),
        layer=layer,
        head=nn.Linear(channels, 2),
    )


def image(**options):
    """Two channels in, four out."""
    options.setdefault("kernel_size", 3)
    return Entry(lambda: pooled(nn.Conv2d(2, 4, **options)), numbers(2, 6, 5))


def text():
    def forward(m, x):
        vectors = m.words(x).transpose(1, 2)
        found = [torch.relu(layer(vectors)).max(2).values for layer in m.layers]
        return m.head(torch.cat(found, 1))

    return Custom(
        forward,
        words=nn.Embedding(WORDS, 4),
        layers=nn.ModuleList(nn.Conv1d(4, 3, size, padding=1) for size in (2, 3)),
        head=nn.Linear(6, 2),
    )


def causal_text():
    """Dilated and causal: padded on the left by hand."""

    def forward(m, x):
        for step, layer in zip((1, 2), m.layers, strict=True):
            x = x + torch.tanh(layer(nn.functional.pad(x, (step, 0))))
        return m.head(x[:, :, -1])

    layers = nn.ModuleList(nn.Conv1d(4, 4, 2, dilation=step) for step in (1, 2))
    return Custom(forward, layers=layers, head=nn.Linear(4, 2))


def separable():
    """One filter per channel, then a mix of channels."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2, bias=False),
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(4 * 2, 2),
    )


def squeeze_excitation():
    def forward(m, x):
        x = m.layer(x)
        gates = torch.sigmoid(m.up(torch.relu(m.down(x.mean((2, 3))))))
        return m.head((x * gates[:, :, None, None]).square().mean((2, 3)))

    return Custom(
        forward,
        layer=nn.Conv2d(2, 4, 3),
        down=nn.Linear(4, 2),
        up=nn.Linear(2, 4),
        head=nn.Linear(4, 2),
    )


def residual_block():
    def forward(m, x):
        x = m.stem(x)
        x = x + m.second(torch.relu(m.norm(m.first(x))))
        return m.head(x.mean((2, 3)))

    return Custom(
        forward,
        stem=nn.Conv2d(2, 4, 1),
        first=nn.Conv2d(4, 4, 3, padding=1, bias=False),
        norm=nn.GroupNorm(2, 4),
        second=nn.Conv2d(4, 4, 3, padding=1),
        head=nn.Linear(4, 2),
    )


def generator():
    return nn.Sequential(
        nn.Linear(4, 12),
        nn.ReLU(),
        nn.Unflatten(1, (3, 2, 2)),
        nn.ConvTranspose2d(3, 2, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(2, 1, 3, padding=1),
    )


def same_convolution_twice():
    return Custom(
        lambda m, x: m.head(torch.tanh(m.layer(torch.tanh(m.layer(x)))).mean((2, 3))),
        layer=nn.Conv2d(2, 2, 3, padding=1),
        head=nn.Linear(2, 2),
    )


def frozen_kernel():
    model = pooled(nn.Conv2d(2, 4, 3))
    model.layer.weight.requires_grad_(False)
    return model


def weight_norm():
    return pooled(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 2)))


CONVOLUTIONS = {
    "Conv1d on words": Entry(text, words()),
    "Conv1d, causal and dilated": Entry(causal_text, numbers(4, 5)),
    "Conv2d": image(),
    "Conv2d, no bias": image(bias=False),
    "Conv2d, groups": image(groups=2),
    "Conv2d, dilation": image(dilation=2, kernel_size=2),
    "Conv2d, stride": image(stride=(2, 1), padding=(1, 2)),
    "Conv2d, circular": image(padding=1, padding_mode="circular"),
    "Conv2d, reflect": image(padding=2, padding_mode="reflect"),
    "Conv2d, replicate": image(padding=(2, 1), padding_mode="replicate"),
    "Conv2d, same": image(padding="same", kernel_size=(2, 3)),
    "Conv2d, frozen weight": Entry(frozen_kernel, numbers(2, 6, 5)),
    "Conv2d, same layer twice": Entry(same_convolution_twice, numbers(2, 4, 4)),
    "Conv3d": Entry(lambda: pooled(nn.Conv3d(1, 4, 2, padding=1)), numbers(1, 3, 4, 3)),
    "ConvTranspose1d": Entry(lambda: pooled(nn.ConvTranspose1d(3, 4, 2)), numbers(3, 5)),
    "ConvTranspose2d": Entry(
        lambda: pooled(nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1)), numbers(2, 3, 3)
    ),
    "depthwise-separable": Entry(separable, numbers(2, 6, 3)),
    "squeeze-excitation": Entry(squeeze_excitation, numbers(2, 5, 5)),
    "residual block with GroupNorm": Entry(residual_block, numbers(2, 4, 4)),
    "generator": Entry(generator, numbers(4), outputs=(1, 4, 4)),
    "weight_norm of Conv1d": Entry(weight_norm, numbers(3, 5)),
}
