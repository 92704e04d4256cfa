"""Types of arguments that several commands share."""
import re
from argparse import ArgumentTypeError

Size = tuple[int, int]  # height and width, pixels
# The measurements of the benchmark.
MODES = ('forward', 'train')
DTYPE_NAMES = ('fp32', 'tf32', 'bf16', 'fp16')
PEER_NAMES = ('cpvt_mm', 'grouped', 'mmseg', 'mmpretrain', 'timm', 'pvt', 'pvtv2')
# Images of COCO as mmdet resizes them, to 800 x 1333, in multiples of 32 pixels.
COCO = '800x1216+608x800+800x1088+480x640+1216x800+640x960+544x800+800x800'


def parse_sides(text: str) -> Size:
    """Parses the pixels of a square's side, such as '512', or of two sides in their order, such as '800x1216'."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise ArgumentTypeError(f'size {text!r} is not an image size: give the pixels of one side, such as 512, or of '
                                'both sides, such as 800x1216.')
    return int(match[1]), int(match[2] or match[1])


def parse_batch(text: str) -> tuple[Size, ...]:
    """Parses the image sizes of a batch: '800x1216' for all images, '800x1216+480x640' for each image, or 'coco'."""
    return tuple(map(parse_sides, (COCO if text == 'coco' else text).split('+')))


def positive(text: str) -> int:
    """Parses a whole number that is at least 1."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f'{number} is not positive')
    return number
