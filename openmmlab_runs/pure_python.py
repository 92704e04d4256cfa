"""Reads configs of mmengine's pure Python style, whose types are classes, as those of the text style, with names."""
import importlib
from collections.abc import Iterator
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.utils import get_object_from_string

from .config_walk import walk
from .libraries import require


def to_text_style(cfg: Config, libraries: tuple[str, ...]) -> Config:
    """Returns a config whose types are names of classes, not classes or places such as `mmdet.models.MaskRCNN`, and
    whose `default_scope`, if it is None, is that of `libraries` that the model is of. Other configs stay unchanged.
    """
    content = cfg.to_dict()
    parts = [part for key in ('model', *content) for _, part in walk(content.get(key))]
    places = {part['type'] for part in parts if isinstance(part.get('type'), str) and part['type'].count('.') > 1}
    scope = content.get('default_scope')
    if scope is None and 'default_scope' in content:
        owners = (str(part.get('type')).partition('.')[0] for part in parts)
        scope = content['default_scope'] = next((one for one in owners if one in libraries), None)
    if not places or scope not in libraries:
        return cfg if scope == cfg.get('default_scope') else Config(content, cfg.text, cfg.filename)
    require(scope)
    kinds = {place: find(place) for place in places}  # what is not imported yet is not registered
    names = dict(registered(scope))
    for part in parts:
        if part.get('type') in places:
            part['type'] = names.get(kinds[part['type']], part['type'])
    return Config(content, cfg.text, cfg.filename)


def find(place: str) -> Any:
    """Returns the object at a place such as `mmdet.models.MaskRCNN`, or None."""
    module, _, name = place.rpartition('.')
    try:
        # The attribute `smooth_l1_loss` of `mmdet.models.losses` is a function, which hides the module of that name.
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return get_object_from_string(place)


def registered(scope: str) -> Iterator[tuple[Any, str]]:
    """Yields registered classes and functions with names in this default scope; the last is that of their own package.
    """
    for root in {id(one): one for one in vars(mmengine.registry).values() if isinstance(one, Registry)}.values():
        own = root.children.get(scope, root)
        for name, kind in (*root.module_dict.items(), *own.module_dict.items()):
            yield kind, name if own.module_dict.get(name, kind) is kind else f'{root.scope}.{name}'
        for registry in root.children.values():
            for name, kind in registry.module_dict.items():
                if registry is not own and kind.__module__.partition('.')[0] == registry.scope:
                    yield kind, f'{registry.scope}.{name}'
