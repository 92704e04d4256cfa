"""Adapts necks and heads to the channels of other maps."""
import copy
from collections.abc import Sequence
from typing import Any

from openmmlab_tools.config_walk import dicts, walk

from .probing import CannotBuild, CannotRun, CannotSwap, Maps, probe_necks

# Entries of a model that do not read feature maps.
NO_HEADS = ('backbone', 'neck', 'data_preprocessor', 'train_cfg', 'test_cfg', 'init_cfg')
# Heads of mmseg: without an in_index they take the last map.
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def adapt_channels(model: dict[str, Any], old: Maps, new: Maps, is_plain: bool) -> None:
    """Adapts the first neck of a detector or segmentor to new maps, and its heads if they depend on them, in place.

    Args:
        model: The config of the model. Necks without a number of output channels are built in mmengine's current scope
            and run, to find it.
        old: The maps of the old backbone.
        new: The maps of the new backbone.
        is_plain: Whether the new backbone is a CPVT, whose map a `SimpleFeaturePyramid` can read.

    Raises:
        CannotSwap: If the neck or a head does not fit `old`, or cannot be adapted.
    """
    necks = dicts(model.get('neck'))
    if necks:
        replace_simple_fpn(necks[0], is_plain)
    if not necks or _channels_key(necks[0]) not in necks[0]:  # necks without channels, such as pooling, accept any maps
        adapt_heads(model, old.channels, new.channels)
        return
    old_necks = copy.deepcopy(necks)
    adapt_neck(necks[0], old.channels, new.channels)
    if not isinstance(necks[0].get('out_channels'), int):
        adapt_heads(model, *_channels_after(old_necks, old, necks, new))


def _channels_after(old_necks: Sequence[dict[str, Any]], old: Maps, necks: Sequence[dict[str, Any]], new: Maps
                    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the channels of the maps after the necks: of the old necks with old maps, and of the adapted necks with
    new maps.
    """
    old_outputs = probe_necks(old_necks, old)
    try:
        return old_outputs.channels, probe_necks(necks, new).channels
    except CannotBuild as error:  # the necks could be built for the old channels
        raise CannotRun(str(error)) from error


def replace_simple_fpn(neck: dict[str, Any], is_plain: bool) -> None:
    """Replaces mmdet's `SimpleFPN` by `SimpleFeaturePyramid`, in place; raises CannotSwap if a pyramid has it."""
    if neck['type'].rpartition('.')[2] != 'SimpleFPN' or 'backbone_channel' not in neck:
        return
    if not is_plain:
        raise CannotSwap(f'its neck {neck["type"]} makes a pyramid from the map of a plain transformer: use CPVT '
                         'instead of PyramidCPVT.')
    new = dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=neck['backbone_channel'],
               out_channels=neck['out_channels'], num_outs=neck['num_outs'])
    neck.clear()
    neck.update(new)


def _channels_key(neck: dict[str, Any]) -> str:
    """Returns the name of a neck's argument for its input channels."""
    return 'embed_dim' if 'embed_dim' in neck else 'in_channels'  # mmseg's Feature2Pyramid


def adapt_neck(neck: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of a neck from the channels of old maps to the channels of new maps, in place.

    Raises CannotSwap if it does not fit `old`. A neck without channels accepts any maps.
    """
    key = _channels_key(neck)
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
    for before, after in ((old, new), (old[::-1], new[::-1])):
        if not isinstance(expected, int) and list(expected) == list(before):
            neck[key] = type(expected)(after)
            return
    raise CannotSwap(f'its neck {neck["type"]} has {key} {expected}, but its backbone returns '
                     f'{", ".join(map(str, old))}: correct the config.')


def adapt_heads(model: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of all heads in a model from the channels of the old maps to the new channels, in
    place.

    Raises CannotSwap if a head does not fit `old`, or its channels cannot be set in the config.
    """
    for name, entry in model.items():
        if name in NO_HEADS:
            continue
        for path, node in walk(entry, (name,)):
            where = '.'.join(map(str, path))
            if node.get('shared_head'):
                raise CannotSwap(f'its {where}.shared_head, {node["shared_head"]["type"]}, is the last stage of the '
                                 'old backbone and accepts only the channels of this backbone.')
            is_head_of_mmseg = name in SEGMENTATION_HEADS and len(path) - isinstance(entry, list) == 1
            _adapt_node(node, where, list(old), list(new), -1 if is_head_of_mmseg else None)


def _adapt_node(node: dict[str, Any], where: str, old: list[int], new: list[int], default_index: int | None) -> None:
    """Adapts a dict of a head at the path `where`, in place; without `in_index` it reads the map of `default_index`."""
    expected = node.get('in_channels')
    index = node.get('in_index', default_index)
    if isinstance(expected, (list, tuple)) and list(expected) == old:
        node['in_channels'] = type(expected)(new)
    elif expected is not None and index is not None:
        indices = [index] if isinstance(index, int) else index
        try:
            before, after = ([channels[i] for i in indices] for channels in (old, new))
        except IndexError:
            before = after = []
        if before != ([expected] if isinstance(expected, int) else list(expected)):
            raise CannotSwap(f'its {where} has in_channels {expected} for in_index {index}, but receives '
                             f'{", ".join(map(str, old))}: correct the config.')
        node['in_channels'] = after[0] if isinstance(expected, int) else after
        if node.get('num_convs') == 0 and node.get('channels') == expected:  # a head that only classifies
            node['channels'] = after[0]
    elif len(old) == 1:
        # With a single map, every part with the same number of channels reads it.
        for key in ('in_channels', 'out_channels') if 'featmap_strides' in node else ('in_channels',):
            if node.get(key) == old[0]:
                node[key] = new[0]
    if node.get('c1_in_channels') == old[0]:  # DeepLabV3+ also takes the first map
        node['c1_in_channels'] = new[0]
