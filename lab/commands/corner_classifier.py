"""Trains classifiers on toy shapes that only occur in the upper left quarter of an image, and tests them everywhere.

Compares the class token with global average pooling (GAP), and a table with PEG: CPVT (arXiv 2102.10882) states that
GAP with PEG is translation invariant. Writes a table as .csv and .md, and a figure.
"""
import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from cpvt_mm.models import CPVT
from lab.arguments import positive
from lab.commands.compare import plot, to_markdown
from lab.commands.toy_shapes import SHAPES, add_noise, background, make_sprite
from lab.results import Row, write_report
from openmmlab_tools.errors import exit_on_error

SIDE, RADIUS = 96, 20  # of images and shapes, pixels
CLASSES = ('sun', 'kite', 'square')
PLACES = {'upper left': (0, 0), 'upper right': (0, 1), 'lower left': (1, 0), 'lower right': (1, 1)}
ENCODINGS = {'table': dict(type='LearnablePE'), 'PEG': dict(type='PEG')}
OUTPUTS = {'class token': 'cls_token', 'GAP': 'gap'}


def draw(place: tuple[int, int], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draws images `(count, 3, SIDE, SIDE)`, each with a shape in one quarter, and returns them with their classes.

    The shapes do not touch the borders of the image or of the quarter.
    """
    images, labels, room = [], [], SIDE / 2 - 2 * RADIUS - 1
    for index in range(count):
        rng = np.random.default_rng([seed, *place, index])
        pixels = background(rng, SIDE, SIDE)
        label = int(rng.integers(len(CLASSES)))
        y, x = (RADIUS + rng.uniform(0, room) + SIDE / 2 * part for part in place)
        make_sprite(rng, SHAPES[CLASSES[label]], x, y, RADIUS).paint(pixels)
        images.append(add_noise(rng, pixels))
        labels.append(label)
    pixels_of_all = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return (pixels_of_all - 120) / 57, torch.tensor(labels)


class Classifier(nn.Module):
    """A narrow `CPVT` of four blocks, and a linear layer."""

    def __init__(self, out_type: Any, position_encoding: dict[str, Any] | None) -> None:
        super().__init__()
        self.backbone = CPVT(dict(embed_dims=32, depth=4, num_heads=2, patch_size=8), img_size=SIDE,
                             cls_token=out_type == 'cls_token', out_type=out_type,
                             position_encoding=position_encoding, init_cfg=dict(type='Xavier', layer='Linear'))
        self.backbone.init_weights()
        self.head = nn.Linear(32, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images)[0])


def train(model: Classifier, images: Tensor, labels: Tensor, iters: int, batch_size: int = 8) -> None:
    """Trains with AdamW and a one-cycle schedule, on batches that are drawn at random."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, iters, pct_start=0.125)
    for _ in range(iters):
        index = torch.randint(len(images), (batch_size,))
        loss = F.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: Classifier, images: Tensor, labels: Tensor) -> float:
    """Returns the share of images whose class is right, in percent."""
    predicted = torch.cat([model(batch).argmax(dim=1) for batch in images.split(20)])
    return 100 * (predicted == labels).double().mean().item()


def rows_of(seed: int, iters: int, num_train: int, num_test: int) -> Iterator[Row]:
    """Trains each classifier with a seed; yields a row for each quarter of the images of its test."""
    images, labels = draw(PLACES['upper left'], num_train, seed)
    tests = {name: draw(place, num_test, 1000) for name, place in PLACES.items()}
    for output, out_type in OUTPUTS.items():
        for encoding, config in ENCODINGS.items():
            torch.manual_seed(seed)
            model = Classifier(out_type, config)
            train(model, images, labels, iters)
            for test, (test_images, test_labels) in tests.items():
                yield dict(variant=f'{output}, {encoding}', seed=seed, test=test,
                           parameters=sum(parameter.numel() for parameter in model.parameters()),
                           seconds_per_iteration=None, accuracy=accuracy(model, test_images, test_labels))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1], help='each classifier is trained once per seed')
    parser.add_argument('--iters', type=positive, default=200, help='iterations of each training')
    parser.add_argument('--num-train', type=positive, default=400, help='number of images to train on')
    parser.add_argument('--num-test', type=positive, default=100, help='number of images to test in each quarter')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/corner_classifier.png'), help='file of the figure')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    rows = [row for seed in track(args.seeds, 'Training')
            for row in rows_of(seed, args.iters, args.num_train, args.num_test)]
    table = 'Accuracy in percent, by the quarter in which the shapes are:\n\n' + to_markdown(rows, ['accuracy'])
    print(write_report(args.out, rows, table, plot(rows, ['accuracy'])))
