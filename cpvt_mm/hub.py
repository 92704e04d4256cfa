"""Saves backbones to folders and the Hugging Face hub: arguments in config.json, weights in safetensors."""
import inspect
import json
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from openmmlab_runs.checkpoints.fetching import unreachable
from openmmlab_runs.checkpoints.reading import check_tensors
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import to_bytes, write_bytes, write_text

try:
    from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
    HAS_HUB = True
except ImportError:
    HAS_HUB = False

    class PyTorchModelHubMixin:  # type: ignore[no-redef]
        """Replaces huggingface_hub's mixin if it is not installed: every method raises an error."""

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__()

        @classmethod
        def _missing(cls, *args: Any, **kwargs: Any) -> None:
            raise UserError("save_pretrained, from_pretrained and push_to_hub need huggingface_hub: pip install "
                            "huggingface_hub, or the extra 'hub' of cpvt_mm.")

        save_pretrained = from_pretrained = push_to_hub = _missing

# Keys that the hub and other libraries write into any config.json.
COMMON_KEYS = ('_name_or_path', '_commit_hash', 'architectures', 'auto_map', 'dtype', 'library_name', 'license',
               'model_type', 'tags', 'torch_dtype', 'transformers_version')

Model = TypeVar('Model', bound='HubMixin')


class HubMixin(nn.Module, PyTorchModelHubMixin, library_name='cpvt_mm', paper_url='https://arxiv.org/abs/2102.10882'):
    """Adds huggingface_hub's `save_pretrained`, `from_pretrained` and `push_to_hub` to a backbone.

    Arguments that are not JSON, unknown keys of config.json, and weights that do not fit are errors, not dropped.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> 'HubMixin':
        self = super().__new__(cls)
        self.__dict__['_arguments'] = (args, kwargs)
        return self

    @classmethod
    def from_pretrained(cls: type[Model], pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Model:
        """Loads a backbone that `save_pretrained` or `push_to_hub` wrote; returns it in eval mode.

        Args:
            pretrained_model_name_or_path: A folder, or `owner/name` on the hub.
            kwargs: Arguments of the backbone, which override config.json; and huggingface_hub's: `revision`, `token`,
                `cache_dir`, `force_download`, `local_files_only`, `map_location`.

        Raises:
            UserError: If config.json is damaged or has an unknown key, or the weights are not finite, or do not fit
                these arguments; or if the hub cannot be reached, and its cache does not have the files.
            OSError: If there are no such files.
        """
        source, away = pretrained_model_name_or_path, ''
        if kwargs.get('init_cfg'):
            raise UserError(f'init_cfg is {kwargs["init_cfg"]}, but from_pretrained loads the weights of {source}: '
                            'leave init_cfg out.')
        try:
            if HAS_HUB and not Path(source).is_dir() and not kwargs.get('local_files_only'):
                place: dict[str, Any] = dict(
                    repo_id=str(source), filename='model.safetensors', revision=kwargs.get('revision'))
                if away := unreachable(place):
                    kwargs['local_files_only'] = True
                    hf_hub_download(**place, cache_dir=kwargs.get('cache_dir'), local_files_only=True)
            model = super().from_pretrained(source, **{'strict': True, **kwargs})
        except OSError as error:
            if not away:
                raise
            raise UserError(f'{source} is not in the cache of the Hugging Face hub, and cannot be fetched ({away}): '
                            'check the network, or name a folder.') from error
        except UserError:
            raise
        except Exception as error:  # of a damaged file, of the constructor, or of load_state_dict
            reason = ' '.join(str(error).split()).rstrip('.')
            raise UserError(f'{source} does not fit a {cls.__name__} ({reason}): use the class and the arguments that '
                            'it was saved with.') from error
        check_tensors(model.state_dict(), source)
        return model.eval()

    # huggingface_hub documents this method as the way to load a model; the class gets what config.json has.
    @classmethod
    def _from_pretrained(cls: type[Model], **kwargs: Any) -> Model:
        return super()._from_pretrained(**{name: value for name, value in kwargs.items() if name not in COMMON_KEYS})

    # huggingface_hub documents this method as the way to choose a model's files. It writes its own config.json only if
    # there is none.
    def _save_pretrained(self, save_directory: Path) -> None:
        write_text(save_directory / 'config.json', json.dumps(self._config(), indent=2) + '\n')
        write_bytes(save_directory / 'model.safetensors', to_bytes(self.state_dict(), safetensors=True))

    def _config(self) -> dict[str, Any]:
        """Returns all arguments except `init_cfg`, which may name a local file."""
        args, kwargs = self.__dict__['_arguments']
        signature = inspect.signature(type(self).__init__)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
        config = dict(bound.arguments)
        unnamed = config.pop(kinds.get(inspect.Parameter.VAR_POSITIONAL, ''), ())
        config |= config.pop(kinds.get(inspect.Parameter.VAR_KEYWORD, ''), {})
        if unnamed:
            raise UserError(f'{type(self).__name__} got {unnamed} without names, which config.json cannot hold: build '
                            'it with name=value.')
        config = {name: value for name, value in config.items() if name not in ('self', 'init_cfg')}
        for name, value in config.items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise UserError(f'{name} of the {type(self).__name__} is {value!r}, which config.json cannot hold: '
                                'build the backbone with names in place of classes.') from error
        return config
