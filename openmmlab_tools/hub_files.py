"""Reads and writes the files of a `HubMixin`, in folders and on the Hugging Face hub."""
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from .checkpoints.fetching import unreachable
from .checkpoints.reading import check_tensors
from .errors import UserError
from .files import to_bytes, write_bytes, write_text
from .registry import FUNCTIONS

try:
    from huggingface_hub import hf_hub_download
    HAS_HUB = True
except ImportError:  # the method of `HubMixin` says so
    HAS_HUB = False

Model = TypeVar('Model', bound=nn.Module)


@FUNCTIONS.register_module()
def load_from_hub(cls: type[Model], load: Callable[..., Model], source: str | Path, options: dict[str, Any]) -> Model:
    """Does what `HubMixin.from_pretrained` describes; `load` is the method of huggingface_hub."""
    if options.get('init_cfg'):
        raise UserError(f'init_cfg is {options["init_cfg"]}, but from_pretrained loads the weights of {source}: leave '
                        'init_cfg out.')
    away = ''
    try:
        if HAS_HUB and not Path(source).is_dir() and not options.get('local_files_only'):
            place: dict[str, Any] = dict(
                repo_id=str(source), filename='model.safetensors', revision=options.get('revision'))
            if away := unreachable(place):
                options['local_files_only'] = True
                hf_hub_download(**place, cache_dir=options.get('cache_dir'), local_files_only=True)
        model = load(source, **{'strict': True, **options})
    except OSError as error:
        if not away:
            raise
        raise UserError(f'{source} is not in the cache of the Hugging Face hub, and cannot be downloaded ({away}): '
                        'check the network, or pass a local folder.') from error
    except UserError:
        raise
    except Exception as error:  # from a damaged file, the constructor, or load_state_dict
        reason = ' '.join(str(error).split()).rstrip('.')
        raise UserError(f'{source} does not fit a {cls.__name__} ({reason}): use the class and the arguments that it '
                        'was saved with.') from error
    check_tensors(model.state_dict(), source)
    return model.eval()


@FUNCTIONS.register_module()
def save_for_hub(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Writes config.json and model.safetensors."""
    write_text(folder / 'config.json', json.dumps(config, indent=2) + '\n')
    write_bytes(folder / 'model.safetensors', to_bytes(weights, safetensors=True))
