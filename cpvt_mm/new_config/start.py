"""Weights to start a training from: released ones of the backbone, or a whole model that lies in a folder."""
from pathlib import Path
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
    address = SCHEME + name
    size = next((size for url in RELEASED[name].files if (size := _size(url)) is not None), None)
    if size is None:
        return None, (f'The backbone starts from random weights, since the net does not answer: with it, {address} has '
                      'weights from ImageNet (model.backbone.init_cfg).')
    return address, (f'The backbone starts from {address}, weights from ImageNet ({size / 1e6:.0f} MB); '
                     '--cfg-options model.backbone.init_cfg=None trains without them.')


def _size(url: str) -> int | None:
    """Returns the bytes of a file in the cache or the net; None if the net does not answer."""
    if (file := cache_file(url)).is_file():
        return file.stat().st_size
    try:
        with urlopen(Request(url, method='HEAD'), timeout=WAIT) as answer:
            return int(answer.headers.get('Content-Length') or 0)
    except (OSError, ValueError):
        return None


def model_in(folder: Path) -> tuple[str, str]:
    """Returns the config and the checkpoint in a folder with one of each, such as demo/nuclei, or raises a UserError.
    """
    configs = sorted(folder.glob('*.py'))
    checkpoints = sorted(path for path in folder.iterdir() if path.suffix in ('.safetensors', '.pth'))
    if len(configs) != 1 or len(checkpoints) != 1:
        raise UserError(f'folder {folder} has {len(configs)} configs and {len(checkpoints)} checkpoints, but must have '
                        'one of each: name a config.')
    return str(configs[0]), str(checkpoints[0].resolve())
