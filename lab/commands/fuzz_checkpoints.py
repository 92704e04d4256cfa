"""Reads damaged checkpoints, each in a process of its own: each must be read or refused in a sentence.

Prints a table by kind of damage. Exits with 1 if a process crashed, hung or ended with another error, and keeps the
files of these.
"""
import argparse
import functools
import io
import json
import pickletools
import random
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from safetensors.torch import save
from torch import Tensor

from cpvt_mm import PyramidCPVT, load_pretrained
from cpvt_mm.zoo.convert import convert_checkpoint
from lab.fuzzing import Case, Mutation, cut, flip, fuzz, insert, parser
from openmmlab_tools.checkpoints.fitting import check_fits, load_weights
from openmmlab_tools.checkpoints.publishing import publish_model
from openmmlab_tools.checkpoints.reading import open_checkpoint, read_checkpoint
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import to_bytes

ARCH = dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2), mlp_ratios=(1, 1, 1, 1),
            sr_ratios=(8, 4, 2, 1))
OPCODES = [opcode.code.encode('latin1') for opcode in pickletools.opcodes]


@functools.cache
def originals() -> dict[str, bytes]:
    """Returns small checkpoints by file name: of this project, plain mmengine with its log, old torch, safetensors."""
    weights = dict(weight=torch.arange(12.).reshape(4, 3), half=torch.ones(5).half(), count=torch.tensor(3))
    log = dict(log_scalars=dict(loss=HistoryBuffer([1., 2.], [1, 1])), runtime_info=dict(best=np.float32(.5)))
    mmengine = dict(meta=dict(epoch=1), state_dict=weights, message_hub=log, args=argparse.Namespace(lr=.1))
    old = io.BytesIO()
    torch.save(mmengine, old, _use_new_zipfile_serialization=False)
    return {'backbone.pth': to_bytes(dict(state_dict=PyramidCPVT(ARCH).state_dict())),
            'ours.pth': to_bytes(dict(meta=dict(epoch=1), state_dict=weights)), 'mmengine.pth': to_bytes(mmengine),
            'legacy.pth': old.getvalue(), 'safe.safetensors': save(weights)}


def replace_opcodes(rng: random.Random, content: bytes) -> bytes:
    """Puts opcodes of pickle, with large arguments at times, where opcodes are."""
    if content.startswith(b'PK'):
        return _change_entries(rng, content, replace_opcodes)
    try:
        places = [place for _, _, place in pickletools.genops(content) if place is not None]
    except ValueError:
        places = []
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.choice(places or range(len(content)))
        argument = rng.choice((b'', b'', b'\xff' * rng.choice((1, 2, 4, 8)), rng.randbytes(4)))
        changed[place:place + rng.choice((1, 1 + len(argument)))] = rng.choice(OPCODES) + argument
    return bytes(changed)


def change_zip(rng: random.Random, content: bytes) -> bytes:
    """Changes, removes, duplicates or renames entries in a zip file, or changes bytes in its directory."""
    if rng.random() < .5:
        place = max(content.rfind(b'PK\x01\x02', 0, rng.randrange(len(content)) + 1), content.rfind(b'PK\x05\x06'))
        return content[:place] + flip(rng, content[place:])
    return _change_entries(rng, content, rng.choice((flip, cut, insert)), is_renamed=rng.random() < .5)


def _change_entries(rng: random.Random, content: bytes, change: Mutation, is_renamed: bool = False) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(written, 'w') as target:
        names = source.namelist()
        chosen = rng.choice([name for name in names if change is not replace_opcodes or name.endswith('data.pkl')])
        for name in names:
            part = source.read(name)
            if name == chosen and is_renamed:
                name = rng.choice((name + 'x', '../' + name, name[1:], 'x', 'x/' * 99 + name))
            elif name == chosen and part:
                part = change(rng, part)
            target.writestr(name, part, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)) if is_renamed else None)
    return written.getvalue()


def change_header(rng: random.Random, content: bytes) -> bytes:
    """Changes the length or an entry of a safetensors header."""
    length, = struct.unpack_from('<Q', content)
    if rng.random() < .3:
        return struct.pack('<Q', rng.choice((0, 1, length - 1, length + 1, 1 << 31, (1 << 64) - 1))) + content[8:]
    header = json.loads(content[8:8 + length])
    name = rng.choice(list(header))
    number = rng.choice((-1, 0, 7, 1 << 31, 1 << 62, 1 << 64, .5, None, 'x', [], {}))
    key = rng.choice(('dtype', 'shape', 'data_offsets', 'x'))
    header[name][key] = rng.choice((number, [number, number], 'F64', 'BOOL'))
    text = json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + content[8 + length:]


# Odd tensors that replace a plain float32 tensor.
ODD: dict[str, Callable[[Tensor], object]] = {
    'quantized': lambda tensor: torch.quantize_per_tensor(tensor, .1, 0, torch.qint8),
    'per channel': lambda tensor: torch.quantize_per_channel(
        tensor, torch.ones(len(tensor)), torch.zeros(len(tensor)), 0, torch.quint8),
    'sparse': Tensor.to_sparse, 'rows': lambda tensor: tensor.reshape(len(tensor), -1).to_sparse_csr(),
    'nested': lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
    'jagged': lambda tensor: torch.nested.nested_tensor([tensor, tensor], layout=torch.jagged),
    'complex': lambda tensor: tensor.to(torch.complex64), 'conjugate': lambda tensor: tensor.to(torch.complex64).conj(),
    'meta': lambda tensor: tensor.to('meta'),
    'masked': lambda tensor: torch.masked.masked_tensor(tensor, tensor > 0),
    **{str(dtype): lambda tensor, dtype=dtype: tensor.to(dtype) for dtype in (
        torch.bool, torch.int8, torch.int64, torch.uint16, torch.float16, torch.bfloat16, torch.float64,
        torch.float8_e4m3fn, torch.float8_e5m2)},
    **{name: lambda tensor, name=name: torch.zeros(tensor.shape, dtype=torch.uint8).view(getattr(torch, name))
       for name in ('float4_e2m1fn_x2', 'bits8', 'float8_e8m0fnu') if hasattr(torch, name)},
    'not finite': lambda tensor: tensor / 0, 'empty': lambda tensor: tensor[:0], 'scalar': lambda tensor: tensor.sum(),
    'turned': lambda tensor: tensor.T if tensor.dim() == 2 else tensor.flip(0), 'parameter': torch.nn.Parameter,
    'endless': lambda tensor: tensor.flatten()[:1].expand(1 << 40), 'list': Tensor.tolist, 'none': lambda tensor: None}


def replace_tensors(rng: random.Random, content: bytes) -> bytes:
    """Replaces some tensors in a checkpoint by odd tensors, or adds odd tensors."""
    checkpoint = torch.load(io.BytesIO(content), weights_only=True)
    weights = checkpoint['state_dict']
    for name in rng.sample(sorted(weights), rng.choice((1, 1, 3))):
        with warnings.catch_warnings(action='ignore'):  # some kinds are new, others are old
            made = ODD[rng.choice(sorted(ODD))](weights[name])
        weights[name if rng.random() < .8 else f'{name}.{name}'] = made
    written = io.BytesIO()
    torch.save(checkpoint, written)
    return written.getvalue()


def use(path: Path) -> None:
    """Reads a checkpoint in each way; raises the last error that a user can cause, and any other error at once."""
    model, told = PyramidCPVT(ARCH), None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways: tuple[Callable[[], object], ...] = (
            lambda: read_checkpoint(path), lambda: check_fits(model, open_checkpoint(path)),
            lambda: load_weights(model, path),
            lambda: load_pretrained(model, path), lambda: convert_checkpoint(path, folder / 'a.pth'),
            lambda: convert_checkpoint(path, folder / 'b.safetensors'),
            lambda: convert_checkpoint(path, folder / 'c.pth', half=True),
            lambda: publish_model(path, folder / 'd.pth'))
        for way in ways:
            try:
                way()
            except UserError as error:
                if '\n' in str(error):
                    raise
                told = error
    if told:
        raise told


MUTATIONS: dict[str, tuple[Mutation, tuple[str, ...]]] = {
    'bytes flipped': (flip, ('',)), 'cut': (cut, ('',)), 'bytes inserted': (insert, ('',)),
    'opcodes replaced': (replace_opcodes, ('.pth',)), 'zip entries changed': (change_zip, ('ours.pth', 'mmengine.pth')),
    'tensors replaced': (replace_tensors, ('backbone.pth',)), 'header changed': (change_header, ('.safetensors',))}


def prepare(rng: random.Random, kind: str, folder: Path) -> Case:
    """Writes a damaged file; returns the call that reads it."""
    mutate, ends = MUTATIONS[kind]
    files = originals()
    name = rng.choice([name for name in files if name.endswith(ends)])
    folder.mkdir()
    (folder / name).write_bytes(mutate(rng, files[name]))
    return functools.partial(use if mutate is replace_tensors else read_checkpoint, folder / name)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        fuzz(parser(__doc__, 10_000).parse_args(), list(MUTATIONS), prepare, Path(scratch), memory=1 << 30, seconds=10)
