"""The names that the original Twins-PCPVT code gives to parameters."""
import re

from torch import Tensor

RULES = (
    (r'^patch_embeds\.(\d+)\.', r'stages.\1.patch_embed.'),
    (r'^blocks\.(\d+)\.(\d+)\.attn\.sr\.', r'stages.\1.blocks.\2.attn.sr.proj.'),
    (r'^blocks\.(\d+)\.(\d+)\.attn\.norm\.', r'stages.\1.blocks.\2.attn.sr.norm.'),
    (r'^blocks\.(\d+)\.(\d+)\.', r'stages.\1.blocks.\2.'),
    (r'^pos_block\.(\d+)\.proj\.0\.', r'stages.\1.position_encoding.0.convs.0.0.'),
)


def rename_twins(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names of `PyramidCPVT`. A name that no rule fits stays as it is."""
    renamed = {}
    for name, tensor in state_dict.items():
        for pattern, replacement in RULES:
            new_name, count = re.subn(pattern, replacement, name)
            if count:
                name = new_name
                break
        renamed[name] = tensor
    return renamed
