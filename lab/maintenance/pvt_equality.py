"""Compares PyramidCPVT with PVT, PVT v2 and MiT of other libraries, with the same random weights, and prints a table.

transformers' PVT takes images of 224 x 224 only.
"""
import argparse
import tempfile
from pathlib import Path

import torch
from mmengine.logging import MMLogger

from cpvt_mm import PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.swap.same import largest_difference
from lab.arguments import parse_sides
from openmmlab_runs.errors import exit_on_error, say
from openmmlab_runs.texts import markdown_table
from tests.weights.pvt import PEERS, randomized


@torch.no_grad()
def differences(name: str, arch: str, sizes: list[tuple[int, int]]) -> list[str]:
    """Returns the largest difference of the maps of an image of each size, as a share of the map's largest value."""
    torch.manual_seed(0)
    build, options, _ = PEERS[name]
    theirs, run = build(PYRAMID_ARCHS[arch])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'theirs.pth'
        torch.save(randomized(theirs).state_dict(), path)
        ours = PyramidCPVT(arch, **options, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
        ours.init_weights()
    ours.eval()
    found = []
    for size in sizes:
        image = torch.randn(1, 3, *size)
        try:
            maps, expected = ours(image), run(image)
        except RuntimeError:  # it takes no such images
            found.append('')
            continue
        are_alike = [one.shape for one in maps] == [other.shape for other in expected]
        found.append(f'{largest_difference(maps, expected):.0e}' if are_alike else 'other shapes')
    return found


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--sizes', nargs='+', type=parse_sides, default=[(224, 224), (512, 512), (800, 1216)],
                        help='image sizes, such as 512 or 800x1216')
    args = parser.parse_args()
    MMLogger.get_instance('equality', log_level='ERROR')
    rows = [[name, arch, *differences(name, arch, args.sizes)] for name, (*_, archs) in PEERS.items() for arch in archs]
    say(markdown_table(['theirs', 'arch', *('x'.join(map(str, size)) for size in args.sizes)], rows))


if __name__ == '__main__':
    main()
