"""Adapts the input channels of necks and heads in a config to the new backbone."""
from collections.abc import Sequence
from typing import Any

from openmmlab_runs.nested import walk

from .probing import CannotSwap

# Entries of a model that do not read feature maps.
NO_HEADS = ('backbone', 'neck', 'data_preprocessor', 'train_cfg', 'test_cfg', 'init_cfg')
# Heads of mmseg: without an in_index they take the last map.
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def channels_key(neck: dict[str, Any]) -> str:
    """Returns the name of a neck's argument for its input channels."""
    return 'embed_dim' if 'embed_dim' in neck else 'in_channels'  # mmseg's Feature2Pyramid


def adapt_neck(neck: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of a neck from those of the old maps to those of the new ones, in place.

    They are a number, for the last map or for all maps, or a list of all maps, in their order or reversed. A neck
    without them accepts any maps. Raises CannotSwap if the neck does not fit `old`.
    """
    key = channels_key(neck)
    expected = neck.get(key)
    if expected is None:
        return
    if isinstance(expected, int) and expected == old[-1]:
        neck[key] = new[-1]
        return
    outputs = neck.get('out_channels')
    if isinstance(outputs, (list, tuple)) and list(outputs[:len(old)]) == list(old):
        # SSD's neck passes the maps through, and makes additional maps from the last one.
        neck['out_channels'] = type(outputs)([*new, *outputs[len(old):]])
    if not isinstance(expected, int) and list(expected) == list(old):
        neck[key] = type(expected)(new)
    elif not isinstance(expected, int) and list(expected) == list(reversed(old)):
        neck[key] = type(expected)(reversed(new))
    else:
        raise CannotSwap(f'its neck {neck["type"]} has {key} {expected}, but its backbone gives '
                         f'{", ".join(map(str, old))}: correct the config.')


def adapt_heads(model: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of all heads in a model, in place, from those of the maps that they got.

    Raises CannotSwap if a head does not fit `old`, or its channels cannot be set in the config.
    """
    for name, entry in model.items():
        if name in NO_HEADS:
            continue
        for path, node in walk(entry, (name,)):
            where = '.'.join(map(str, path))
            if node.get('shared_head'):
                raise CannotSwap(f'its {where}.shared_head, {node["shared_head"]["type"]}, is the last stage of the '
                                 'old backbone and takes its channels only.')
            is_head_of_mmseg = name in SEGMENTATION_HEADS and len(path) - isinstance(entry, list) == 1
            _adapt_node(node, where, list(old), list(new), -1 if is_head_of_mmseg else None)


def _adapt_node(node: dict[str, Any], where: str, old: list[int], new: list[int], default_index: int | None) -> None:
    """Adapts one dict of a head, at path `where` of the config.

    Without an `in_index`, its input map is that of `default_index`; None if it may have no input map.
    """
    expected = node.get('in_channels')
    index = node.get('in_index', default_index)
    if isinstance(expected, (list, tuple)) and list(expected) == old:
        node['in_channels'] = type(expected)(new)
    elif expected is not None and index is not None:
        indices = [index] if isinstance(index, int) else index
        try:
            was, becomes = ([channels[i] for i in indices] for channels in (old, new))
        except IndexError:
            was = becomes = []
        if was != ([expected] if isinstance(expected, int) else list(expected)):
            raise CannotSwap(f'its {where} has in_channels {expected} for in_index {index}, but gets '
                             f'{", ".join(map(str, old))}: correct the config.')
        node['in_channels'] = becomes[0] if isinstance(expected, int) else becomes
        if node.get('num_convs') == 0 and node.get('channels') == expected:  # a head that only classifies
            node['channels'] = becomes[0]
    elif len(old) == 1:
        # With a single map, every part with the same number of channels reads it.
        for key in ('in_channels', 'out_channels') if 'featmap_strides' in node else ('in_channels',):
            if node.get(key) == old[0]:
                node[key] = new[0]
    if node.get('c1_in_channels') == old[0]:  # DeepLabV3+ also takes the first map
        node['c1_in_channels'] = new[0]
