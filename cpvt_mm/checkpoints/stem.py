"""The first convolution, for images with another number of channels than a checkpoint's."""
from torch import Tensor

STEMS = ('stages.0.patch_embed.proj.weight', 'patch_embed.proj.weight')


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Makes a convolution of RGB images one of another number of channels; its outputs keep their scale.

    One channel gets the sum over the three, so a grey image gives what it gives as RGB. More repeat them in turn, times
    `3 / channels`, so an image of equal channels gives the same, too, if their number is a multiple of 3.

    Args:
        weight: `(C, 3, H, W)`.
        channels: The number that is wanted.

    Returns:
        `(C, channels, H, W)`.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, [i % 3 for i in range(channels)]] * (3 / channels)


def fit_stem(weights: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Adapts the first convolution of a file for RGB, if the backbone has other channels; returns a note on it, too.

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
