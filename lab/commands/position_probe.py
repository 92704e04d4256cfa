"""Measures how much of row and column a ridge regression reads from the features of backbones, by layer and size.

Without models, it compares several position encodings, and the forms of DINOv2 and DINOv3, with random weights. Writes
a figure, and a table as .md and .csv. Images of noise say nothing of where a cell is; in photographs the sky is above.
Half of the images fit the regression of a size, a quarter chooses its penalty, and the rest is held out.
"""
import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mmengine.config import Config
from rich.progress import track
from torch import Tensor, nn

from cpvt_mm.models.create import create_backbone
from lab.features import IMAGENET, draw_weights, panels, read_square, smooth_noise
from lab.results import write_report
from openmmlab_tools.checkpoints.loading import to_input
from openmmlab_tools.errors import UserError, exit_on_error, first_line
from openmmlab_tools.texts import label, markdown_table

PENALTIES = 10. ** torch.arange(-6, 6, dtype=torch.float64)  # for features of variance 1
MOST_CELLS = 400  # of an image, drawn at random; more would hardly change a regression


@dataclass(frozen=True)
class Reading:
    """How well row and column can be predicted from the features of a layer, at one image size.

    The values are R squared, the mean over held-out images: 1 for a perfect prediction, 0 or less for a prediction that
    is no better than the mean. Each margin is two standard errors of the mean.
    """
    side: int  # height and width of the images, in pixels
    layer: int  # counted from 0
    row: float
    row_margin: float
    column: float
    column_margin: float


@torch.no_grad()
def measure(model: nn.Module, draw: Callable[[int, int], Tensor], sides: Iterable[int], count: int) -> list[Reading]:
    """Probes all layers of a backbone in eval mode with `count` images of each side, `draw(side, index)`.

    Images are `(1, 3, side, side)`. Half of them fit the regressions, a quarter chooses their penalty, and the rest is
    held out. Raises a UserError if there are fewer than 8 images.
    """
    if count < 8:
        raise UserError(f'{count} images are too few to fit, to choose and to test: use at least 8.')
    model.eval()
    readings = []
    for side in sides:
        generator, sampled = torch.Generator().manual_seed(0), list[list[tuple[Tensor, Tensor]]]()
        for index in range(count):
            sampled.append([_sample(x, generator) for x in layers(model, draw(side, index))])
        for layer, images in enumerate(zip(*sampled, strict=True)):
            shares = read(*(torch.stack(parts) for parts in zip(*images, strict=True)))
            means, margins = shares.mean(dim=0), 2 * shares.std(dim=0) / math.sqrt(len(shares))
            readings.append(Reading(side, layer, means[0].item(), margins[0].item(), means[1].item(),
                                    margins[1].item()))
    return readings


def layers(model: Any, images: Tensor) -> list[Tensor]:
    """Returns the maps `(1, C, h, w)` after each layer of a backbone of ours, timm or transformers, or of a module.

    Tokens of transformers are taken for a square grid after extra tokens. Raises a UserError if they are no such one.
    """
    if hasattr(model, 'forward_intermediates'):
        return list(model.forward_intermediates(images, intermediates_only=True))
    if not hasattr(model, 'config'):
        out = model(images)
        return list(out) if isinstance(out, (list, tuple)) else [out]
    states = model(images, output_hidden_states=True).hidden_states[1:]  # without the embedding
    if all(state.dim() == 4 for state in states):
        return list(states)
    patch = getattr(model.config, 'patch_size', None)
    if not isinstance(patch, int):
        raise UserError(f'{type(model).__name__} returns no maps and has no patch_size: use a plain transformer.')
    side = images.shape[2] // patch
    return [state[:, -side * side:].mT.unflatten(2, (side, side)) for state in states]


def _sample(features: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws cells of a map `(1, C, h, w)`: their features `(n, C)`, and their rows and columns from -1 to 1, `(n, 2)`.
    """
    y, x = (torch.linspace(-1, 1, side, dtype=torch.float64) for side in features.shape[2:])
    chosen = torch.randperm(len(y) * len(x), generator=generator)[:MOST_CELLS]
    return features[0].flatten(1).T[chosen].double(), torch.cartesian_prod(y, x)[chosen]


def read(features: Tensor, places: Tensor) -> Tensor:
    """Fits places `(B, n, 2)` to features `(B, n, C)`; returns R squared for each image held out, `(B', 2)`."""
    fitted, chosen = len(features) // 2, len(features) // 4
    mean, std = (f(features[:fitted].flatten(0, 1)) for f in (lambda x: x.mean(dim=0), lambda x: x.std(dim=0)))
    scale = std.square().mean().sqrt()
    x = (features - mean) / std.clamp(min=1e-5 * scale.clamp(min=1e-12))  # what hardly varies is rounding
    rows = x[:fitted].flatten(0, 1)
    values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    target = vectors.T @ (rows.T @ places[:fitted].flatten(0, 1)) / len(rows)
    weights = vectors @ (target / (values[:, None] + PENALTIES[:, None, None]))  # (penalties, C, 2)
    shares = torch.stack([_shares(x[fitted:] @ weight, places[fitted:]) for weight in weights])
    best = shares[:, :chosen].mean(dim=1).argmax(dim=0)
    return torch.stack([shares[best[axis], chosen:, axis] for axis in (0, 1)], dim=1)


def _shares(predicted: Tensor, places: Tensor) -> Tensor:
    """Returns R squared of row and column for each image: `(B, n, 2)` twice -> `(B, 2)`."""
    return 1 - (predicted - places).square().sum(1) / (places - places.mean(1, keepdim=True)).square().sum(1)


# What the tool compares if no models are named: DINOv2's form has a table and registers, DINOv3's rotates.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    'PEG': ('cpvt-tiny', dict(position_encoding=dict(type='PEG'))),
    'table': ('cpvt-tiny', dict(position_encoding=dict(type='LearnablePE'))),
    'rotary': ('cpvt-tiny', dict(position_encoding=dict(type='RotaryPE'))),
    'LookHere': ('cpvt-tiny', dict(position_encoding=dict(type='LookHerePE'))),
    "DINOv2's form": ('dinov2-small-reg4', {}), "DINOv3's form": ('dinov3-small', {})}


def build_form(name: str, seed: int) -> nn.Module:
    """Builds one of `FORMS` with random weights, in which attention and positions have effect."""
    kind, options = FORMS[name]
    torch.manual_seed(seed)
    model = create_backbone(kind, **options)
    draw_weights(model, seed)
    return model


def build_model(name: str, pretrained: bool) -> nn.Module:
    """Builds 'timm:NAME', 'transformers:NAME', or a backbone of ours by its name; random weights if not `pretrained`.

    Raises a UserError if it cannot be built.
    """
    library, _, rest = name.rpartition(':')
    if library not in ('', 'timm', 'transformers'):
        raise UserError(f"{name!r} is not a model: use timm:NAME, transformers:NAME, or a name of list_backbones().")
    try:
        if library == 'timm':
            import timm
            try:
                return timm.create_model(rest, pretrained, dynamic_img_size=True)
            except TypeError:  # only transformers have this argument
                return timm.create_model(rest, pretrained)
        if library == 'transformers':
            from transformers import AutoConfig, AutoModel
            return (AutoModel.from_pretrained(rest) if pretrained
                    else AutoModel.from_config(AutoConfig.from_pretrained(rest)))
    except Exception as error:  # these libraries raise any error: unknown names, no network, a gated model
        raise UserError(f'{name} cannot be built: {first_line(error)}') from error
    return create_backbone(rest, pretrained=pretrained)


def figure_of(results: dict[str, list[Reading]], title: str) -> Figure:
    """Draws R squared, the mean of row and column, by layer: a panel for each model, a line for each image size."""
    figure, drawn = panels(len(results), 3, 3.2, 2.6, title, sharey=True)
    for axes, (name, readings) in zip(drawn, results.items(), strict=True):
        for side in dict.fromkeys(reading.side for reading in readings):
            of_side = [reading for reading in readings if reading.side == side]
            at = [reading.layer for reading in of_side]
            shares = torch.tensor([(reading.row + reading.column) / 2 for reading in of_side])
            margins = torch.tensor([(reading.row_margin + reading.column_margin) / 2 for reading in of_side])
            line, = axes.plot(at, shares, marker='.', label=f'{side} px')
            axes.fill_between(at, shares - margins, shares + margins, alpha=0.2, color=line.get_color(), linewidth=0)
        axes.set(title=label(name), ylim=(-0.1, 1.05), xlabel='layer')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawn[0].set_ylabel('R squared')
    figure.legend(*drawn[0].get_legend_handles_labels(), loc='outside right upper')
    return figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('models', nargs='*', metavar='MODEL',
                        help='name of list_backbones(), timm:NAME or transformers:NAME, which may be a folder')
    parser.add_argument('--pretrained', action='store_true', help='load the released weights of the models')
    parser.add_argument('--images', type=Path, nargs='+', metavar='FILE',
                        help='images whose central squares are used, normalized as for ImageNet; not given: smooth '
                        'noise')
    parser.add_argument('--count', type=int, default=32, help='images of noise')
    parser.add_argument('--size', type=int, default=224, help='side of the images in pixels, that of the training')
    parser.add_argument('--scales', type=float, nargs='+', default=[0.5, 1., 2., 3.], help='by which it is multiplied')
    parser.add_argument('--seed', type=int, default=0, help='seed of noise and of random weights')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/position_probe.png'), help='file of the figure')
    return parser.parse_args()


def drawing(args: argparse.Namespace) -> Callable[[int, int], Tensor]:
    """Returns what makes an image `(1, 3, side, side)` of a side and the index of an image."""
    if args.images:
        cfg = Config(dict(model=dict(data_preprocessor=IMAGENET)))
        return lambda side, index: to_input(read_square(args.images[index], side), cfg)
    return lambda side, index: smooth_noise(side, args.seed * args.count + index)


@exit_on_error
def main() -> None:
    args = parse_args()
    sides = [round(args.size * scale) for scale in args.scales]
    if min(sides) < 4:
        raise UserError(f'--size {args.size} and --scales {min(args.scales)} give images of {min(sides)} pixels: '
                        'choose larger ones.')
    draw, count, results = drawing(args), len(args.images or range(args.count)), {}
    for name in track(args.models or list(FORMS), 'Probing'):
        torch.manual_seed(args.seed)
        model = build_model(name, args.pretrained) if args.models else build_form(name, args.seed)
        results[name] = measure(model, draw, sides, count)
    weights = 'released' if args.pretrained else 'random'
    title = (f'How well a linear map predicts row and column from features: {weights} weights, {count} images, '
             f'{args.size} px at 1x')
    last = {name: [reading for reading in readings if reading.layer == readings[-1].layer]
            for name, readings in results.items()}
    table = f'{title}. R squared after the last layer, row and column:\n\n' + markdown_table(
        ['model', *(f'{side} px' for side in sides)],
        [[name, *(f'{x.row:.2f}±{x.row_margin:.2f}, {x.column:.2f}±{x.column_margin:.2f}' for x in readings)]
         for name, readings in last.items()])
    rows = [dict(model=name, **asdict(reading)) for name, readings in results.items() for reading in readings]
    print(write_report(args.out, rows, table, figure_of(results, title)))
