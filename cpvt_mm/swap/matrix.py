"""The swap tried on the configs that mmdet and mmseg ship, one by one."""
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from mmengine.config import Config

from cpvt_mm.errors import UserError, first_line

from .channels import walk
from .errors import CannotBuild, CannotRun, CannotSwap
from .swapping import swap_backbone
from .trial import build, try_out
from .writing import read_config, shipped_configs, write_config

LIBRARIES = ('mmdet', 'mmseg')
# What is built, and what is run: widths are handled alike, and the nano one takes less time.
ARCH_TO_BUILD, ARCH_TO_RUN = 'small', 'nano'
# Types of backbones whose configs must be swapped, or refused for a reason that holds for any strided pyramid.
PYRAMIDS = re.compile(
    r'(mm\w+\.)?(ResNet|ResNetV1c|ResNetV1d|ResNeXt|RegNet|Res2Net|ResNeSt|HRNet|SwinTransformer|'
    r'PyramidVisionTransformer(V2)?|ConvNeXt|MixVisionTransformer|PCPVT|SVT)')


@dataclass(frozen=True)
class Record:
    """What came of one config.

    Attributes:
        library: 'mmdet' or 'mmseg'.
        config: Its path below the library's configs; the first folder is the algorithm's family.
        backbone: The types of its backbones, joined by commas.
        outcome: 'built': swapped, written, read again and built. 'refused': not swapped, with a reason. 'failed': any
            other error. 'unavailable': an error that the config has with its old backbone, too. 'fragment': a file
            without a model, for others to inherit from.
        reason: Of every outcome but 'built'.
    """
    library: str
    config: str
    backbone: str
    outcome: Literal['built', 'refused', 'failed', 'unavailable', 'fragment']
    reason: str = ''

    @property
    def family(self) -> str:
        return self.config.split('/')[0]

    @property
    def has_pyramid(self) -> bool:
        """Whether one of the backbones is among `PYRAMIDS`."""
        return any(PYRAMIDS.fullmatch(name) for name in self.backbone.split(', '))


@dataclass(frozen=True)
class Trial:
    """What came of a step of training and a prediction with one config of a family; attributes as of `Record`."""
    library: str
    family: str
    config: str
    outcome: Literal['ran', 'failed', 'unavailable']
    reason: str = ''


def list_configs(library: str) -> list[str]:
    """Paths of the configs that the installed `library` ships, below its folder of configs; bases left out."""
    folder = shipped_configs(library)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob('*.py'))]
    return [path.as_posix() for path in paths if '_base_' not in path.parts]


def check(library: str, config: str, arch: str) -> Record:
    """Swaps the backbone of a config, writes that, reads it and builds the model."""
    path = shipped_configs(library) / config
    try:
        old = read_config(str(path))
    except (UserError, ImportError) as error:
        return Record(library, config, _backbones_of_source(path), 'unavailable', _say(error))
    backbone = ', '.join(str(node['backbone'].get('type')) for _, node in walk(old.get('model') or {})
                         if isinstance(node.get('backbone'), dict))
    if not old.get('model'):
        return Record(library, config, backbone, 'fragment', 'no model')
    try:
        new = _swap_and_read_again(old, path, arch)
    except CannotBuild as error:
        return Record(library, config, backbone, 'unavailable', _say(error))
    except CannotSwap as error:
        outcome = 'failed' if isinstance(error, CannotRun) else 'refused'  # the probe may be at fault
        return Record(library, config, backbone, outcome, _say(error))
    except Exception as error:  # that is what it is to find
        return Record(library, config, backbone, 'failed', _say(error))
    reason = _raises(build, new)
    if reason:
        return Record(library, config, backbone, *_blame(reason, _raises(build, old), 'swapped and written, but '))
    return Record(library, config, backbone, 'built')


def _swap_and_read_again(old: Config, path: Path, arch: str) -> Config:
    with TemporaryDirectory() as folder:
        swapped = Path(folder) / 'swapped.py'
        write_config(old, swap_backbone(old, arch), str(path), swapped)
        return Config.fromfile(swapped)


def run(library: str, config: str, arch: str) -> Trial:
    """Swaps the backbone of a config, trains a step and predicts."""
    old = read_config(str(shipped_configs(library) / config))
    family = config.split('/')[0]
    reason = _raises(try_out, swap_backbone(old, arch))
    if not reason:
        return Trial(library, family, config, 'ran')
    return Trial(library, family, config, *_blame(reason, _raises(try_out, old), ''))


def _blame(reason: str, reason_before: str, then: str) -> tuple[Literal['failed', 'unavailable'], str]:
    """An error that the old backbone gives as well, in the same words but for numbers, is none of the swap's."""
    is_same = re.sub(r'\d+', '', reason) == re.sub(r'\d+', '', reason_before)
    return ('unavailable', f'{then}{reason_before}') if is_same else ('failed', reason)


def _raises(function: Callable[[Config], object], cfg: Config) -> str:
    """What a function raises for a config, in a line; '' if nothing."""
    try:
        function(cfg)
    except Exception as error:  # that is what it is to find
        return _say(error)
    return ''


def _say(error: Exception) -> str:
    text = first_line(error) if isinstance(error, UserError) else f'{type(error).__name__}: {first_line(error)}'
    # Folders of this machine are no part of a reason; nor is the layout of a text.
    return re.sub(r'\s+', ' ', re.sub(r'(?<![\w:/])/\S+/', '', text))


def _backbones_of_source(path: Path) -> str:
    """Types of backbones that a config's own text names."""
    return ', '.join(re.findall(r"backbone=dict\([^()]*?type='([\w.]+)'", path.read_text()))
