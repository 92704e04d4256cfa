"""Adapts the first convolution of a checkpoint to another number of image channels."""
from torch import Tensor

STEMS = ('stages.0.patch_embed.proj.weight', 'patch_embed.proj.weight')


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapts a convolution from RGB to another number of input channels; its outputs keep their scale.

    A single channel gets the sum of the three, so that a grey image gives the same output as its RGB version. Other
    numbers of channels repeat the three in turn, scaled by `3 / channels`. An image with equal channels then also gives
    the same output, if `channels` is a multiple of 3.

    Args:
        weight: `(C, 3, H, W)`.
        channels: The new number of input channels.

    Returns:
        `(C, channels, H, W)`.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, [i % 3 for i in range(channels)]] * (3 / channels)


def fit_stem(weights: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Adapts the first convolution from RGB, if the backbone has other input channels; also returns a note about it.

    Args:
        weights: Weights of the file, under the names here.
        wanted: Weights of the backbone.
    """
    name = next((name for name in STEMS if name in weights and name in wanted), None)
    if name is None or weights[name].dim() != 4 or weights[name].shape[1] != 3 or wanted[name].shape[1] == 3:
        return weights, []
    channels = wanted[name].shape[1]
    return ({**weights, name: adapt_channels(weights[name], channels)},
            [f'{name} adapted from 3 input channels to {channels}'])
