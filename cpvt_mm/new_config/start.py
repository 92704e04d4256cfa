"""Weights to start a training from: released ones of the backbone, or a whole model that lies in a folder."""
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from cpvt_mm.weights.released import RELEASED, SCHEME
from openmmlab_runs.checkpoints.fetching import cache_file
from openmmlab_runs.errors import UserError

WAIT = 5.  # seconds for an answer of the net


def released_weights(arch: str) -> tuple[str | None, str]:
    """Returns the address of released weights of a `PyramidCPVT`, if they can be had, and a sentence about them."""
    name = f'pyramid-cpvt-{arch}'
    if name not in RELEASED:
        return None, f'The backbone starts from random weights: there are none for {arch}.'
    address, files = SCHEME + name, list(RELEASED[name].files)
    size = _cached_size(files) or _size_in_net(files)
    if size is None:
        return None, (f'The backbone starts from random weights, since the net does not answer: with it, {address} has '
                      'weights from ImageNet (model.backbone.init_cfg).')
    return address, (f'The backbone starts from {address}, weights from ImageNet ({size / 1e6:.0f} MB); '
                     '--cfg-options model.backbone.init_cfg=None trains without them.')


def _cached_size(urls: list[str]) -> int | None:
    return next((file.stat().st_size for url in urls if (file := cache_file(url)).is_file()), None)


def _size_in_net(urls: list[str]) -> int | None:
    for url in urls:
        try:
            with urlopen(Request(url, method='HEAD'), timeout=WAIT) as answer:
                return int(answer.headers.get('Content-Length') or 0)
        except (URLError, OSError, ValueError):
            continue
    return None


def model_in(folder: Path) -> tuple[str, str]:
    """Returns the config and the checkpoint in a folder with one of each, such as demo/nuclei.

    Raises:
        UserError: If it has not one of each.
    """
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(path for path in folder.iterdir() if path.suffix in ('.safetensors', '.pth'))
    if len(configs) != 1 or len(checkpoints) != 1:
        raise UserError(f'folder {folder} has {len(configs)} configs and {len(checkpoints)} checkpoints, but must have '
                        'one of each: name a config.')
    return str(configs[0]), str(checkpoints[0].resolve())
