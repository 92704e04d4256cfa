"""The names that timm's DeiT gives to parameters."""
from torch import Tensor


def rename_deit(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names of `CPVT` with a class token and `LearnablePE` on a square grid.

    The classifier is left out. The class token always has the same place, so the table's row for it is added to it.
    """
    renamed = {}
    for name, tensor in state_dict.items():
        if '.qkv.' in name:
            q, kv = tensor.split([len(tensor) // 3, 2 * len(tensor) // 3])
            renamed |= {name.replace('qkv', 'q'): q, name.replace('qkv', 'kv'): kv}
        elif not name.startswith(('head.', 'pos_embed')):
            renamed[name] = tensor
    table = state_dict['pos_embed']
    side = round((table.shape[1] - 1)**0.5)
    renamed['cls_token'] = state_dict['cls_token'] + table[:, :1]
    renamed['position_encoding.0.table'] = table[0, 1:].unflatten(0, (side, side))
    return renamed
