"""A mixin that saves models to folders and the Hugging Face hub: arguments in config.json, weights in safetensors."""
import inspect
import json
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from .errors import UserError
from .registry import FUNCTIONS

try:
    from huggingface_hub import PyTorchModelHubMixin
except ImportError:

    class PyTorchModelHubMixin:  # type: ignore[no-redef]
        """Replaces huggingface_hub's mixin if it is not installed: every method raises an error."""

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__()

        @classmethod
        def _missing(cls, *args: Any, **kwargs: Any) -> None:
            raise UserError('save_pretrained, from_pretrained and push_to_hub need huggingface_hub: pip install '
                            'huggingface_hub.')

        save_pretrained = from_pretrained = push_to_hub = _missing

# Keys that the hub and other libraries write into any config.json.
COMMON_KEYS = ('_name_or_path', '_commit_hash', 'architectures', 'auto_map', 'dtype', 'library_name', 'license',
               'model_type', 'tags', 'torch_dtype', 'transformers_version')

Model = TypeVar('Model', bound='HubMixin')


class HubMixin(nn.Module, PyTorchModelHubMixin):
    """Adds huggingface_hub's `save_pretrained`, `from_pretrained` and `push_to_hub` to a model.

    Arguments that are not JSON, unknown keys of config.json, and weights that do not fit are errors, not dropped.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> 'HubMixin':
        self = super().__new__(cls)
        self.__dict__['_arguments'] = (args, kwargs)
        return self

    @classmethod
    def from_pretrained(cls: type[Model], pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Model:
        """Loads a model that `save_pretrained` or `push_to_hub` wrote; returns it in eval mode.

        Args:
            pretrained_model_name_or_path: A folder, or `owner/name` on the hub.
            kwargs: Arguments of the model, which override config.json; and huggingface_hub's: `revision`, `token`,
                `cache_dir`, `force_download`, `local_files_only`, `map_location`.

        Raises:
            UserError: If config.json is damaged or has an unknown key, or the weights are not finite, or do not fit
                these arguments; or if the hub cannot be reached, and its cache does not have the files.
            OSError: If there are no such files.
        """
        load: Any = FUNCTIONS.get('openmmlab_tools.load_from_hub')
        return load(cls, super().from_pretrained, pretrained_model_name_or_path, kwargs)

    # huggingface_hub documents this method as the way to load a model; `config` is what config.json has. It drops keys
    # that the class does not have.
    @classmethod
    def _from_pretrained(cls: type[Model], config: dict[str, Any] | None = None, **kwargs: Any) -> Model:
        for name in config or ():
            if name not in kwargs and name not in COMMON_KEYS:
                raise TypeError(f'{cls.__name__}.__init__() got an unexpected keyword argument {name!r}')
        return super()._from_pretrained(**{name: value for name, value in kwargs.items() if name not in COMMON_KEYS})

    # huggingface_hub documents this method as the way to choose a model's files. It writes its own config.json only if
    # there is none.
    def _save_pretrained(self, save_directory: Path) -> None:
        save: Any = FUNCTIONS.get('openmmlab_tools.save_for_hub')
        save(save_directory, self._config(), self.state_dict())

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
            raise UserError(f'{type(self).__name__} was built with {unnamed} without names, which config.json cannot '
                            'store: pass these arguments as name=value.')
        config = {name: value for name, value in config.items() if name not in ('self', 'init_cfg')}
        for name, value in config.items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise UserError(f'{name} of the {type(self).__name__} is {value!r}, which config.json cannot store: '
                                'pass the name of a class in place of the class.') from error
        return config
