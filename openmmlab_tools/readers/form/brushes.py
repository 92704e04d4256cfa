"""Reads the masks of Label Studio's brush: run lengths in bits, as the package @thi.ng/rle-pack writes them."""
from collections.abc import Sequence

import numpy as np

MOST = 2**28  # values of a mask
CHANNELS = 4  # of the painted picture; the last channel is the mask


def read_brush(code: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Decodes a brush mask of Label Studio: returns `(H, W)`, bool. Raises a ValueError for other bytes.

    The bytes begin with the number of values (32 bits), the bits of a value (5), and the bits of four kinds of lengths
    (4 each), each minus 1. Then come runs: a bit that is 1 if all values are equal, the kind of the length (2), the
    length minus 1, and one value or all values.
    """
    bits, place = np.unpackbits(np.array(code, np.uint8)), 0

    def read(length: int) -> int:
        nonlocal place
        place += length
        if place > len(bits):
            raise ValueError(f'it ends after {len(bits)} bits')
        return int.from_bytes(np.packbits(np.pad(bits[place - length:place], (-length % 8, 0))).tobytes(), 'big')

    total = read(32)
    if not 0 < total <= MOST or total != size[0] * size[1] * CHANNELS:
        raise ValueError(f'it has {total} values, but {size[0]} x {size[1]} pixels have {CHANNELS} each')
    width, lengths = read(5) + 1, [read(4) + 1 for _ in range(4)]
    values, start = np.zeros(total, bool), 0
    while start < total:
        is_run = read(1)
        end = start + read(lengths[read(2)]) + 1
        if end > total:
            raise ValueError(f'it has more than {total} values')
        if is_run:
            values[start:end] = read(width) > 0
        else:
            place += (end - start) * width
            if place > len(bits):
                raise ValueError(f'it ends after {len(bits)} bits')
            values[start:end] = bits[place - (end - start) * width:place].reshape(-1, width).any(axis=1)
        start = end
    return values.reshape(size[1], size[0], CHANNELS)[..., -1]
