"""Sources of images: one, several, and what is refused."""
import functools
import http.server
import re
import threading
from collections.abc import Iterable
from io import BytesIO
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from openmmlab_tools.errors import UserError
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.sources import BrokenVideo, images_of, pages_of
from openmmlab_tools.texts import printable
from tests.helpers import refusal
from tests.pictures import random_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b.png, a.png, and below/c.png."""
    (tmp_path / 'below').mkdir()
    for name in ('b.png', 'a.png', 'below/c.png'):
        random_image(tmp_path / name, 20, 30)
    return tmp_path


def names(source: object) -> list[str]:
    return [name for name, _ in images_of(source)]


def test_paths_are_files_folders_and_patterns_in_order(folder: Path) -> None:
    assert names(folder / 'b.png') == names(str(folder / 'b.png')) == ['b.png']
    assert names(folder) == ['a.png', 'b.png'] and len(images_of(folder)) == 2  # for a progress bar
    assert names(folder / '*.png') == ['a.png', 'b.png']
    assert names(f'{folder}/**/*.png') == ['a.png', 'b.png', 'below/c.png']
    (folder / 'a').mkdir()
    assert names(f'{folder}/*/**/*.png') == ['below/c.png']
    assert names(folder / 'b*/c.png') == ['below/c.png']
    assert names([folder / 'below', folder / 'b.png']) == ['c.png', 'b.png']
    random_image(folder / 'x[1].png', 8, 8)
    assert names(folder / 'x[1].png') == ['x[1].png']  # a file that is there is no pattern


def test_pixels_are_those_of_pillow_arrays_and_tensors(folder: Path) -> None:
    pixels = random_image(folder / 'a.png', 20, 30)
    chw = torch.from_numpy(pixels).permute(2, 0, 1)
    with Image.open(folder / 'a.png') as opened:
        for source in (pixels, opened, Image.fromarray(pixels), chw, chw[None].double() / 255, (chw for _ in range(1))):
            (_, actual), = images_of(source)
            assert actual.dtype == np.uint8 and np.array_equal(actual, pixels)
    assert len(images_of(torch.zeros(4, 3, 8, 8))) == 4


def write_video(path: Path, frames: Iterable[np.ndarray]) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 5, (32, 16))
    for frame in frames:
        writer.write(frame)
    writer.release()


def test_a_video_is_read_frame_by_frame(tmp_path: Path) -> None:
    path = tmp_path / 'clip.avi'
    write_video(path, (np.full((16, 32, 3), grey, np.uint8) for grey in (0, 100, 200)))
    assert [(name, frame.shape, round(frame.mean(), -1)) for name, frame in images_of(path)] == [
        (f'clip.avi_00000{number}', (16, 32, 3), grey) for number, grey in ((1, 0), (2, 100), (3, 200))]


def test_a_video_that_breaks_off_is_told_after_its_whole_frames(tmp_path: Path) -> None:
    path, part = tmp_path / 'clip.avi', tmp_path / 'part.avi'
    write_video(path, np.random.default_rng(0).integers(0, 255, (20, 16, 32, 3), np.uint8))
    content = path.read_bytes()
    begins = [found.start() for found in re.finditer(b'00dc', content)]
    for whole in (3, 8, 19):
        part.write_bytes(content[:begins[whole]])
        read: list[str] = []
        with pytest.raises(BrokenVideo) as error:
            for name, _ in images_of(part):
                read.append(name)
        assert 0 < len(read) <= whole
        assert f'part.avi has 20 frames, but {20 - len(read)} of them cannot be read (from' in str(error.value)


class Capture:
    """A video of 10 frames each second: which of its frames are whole, and how many OpenCV counts."""

    def __init__(self, whole: str, count: int) -> None:
        self.whole, self.count, self.at = whole, count, -1

    def read(self) -> tuple[bool, np.ndarray | None]:
        self.at += 1
        return (True, PIXELS) if self.whole[self.at:self.at + 1] == '1' else (False, None)

    def get(self, key: int) -> float:
        return {cv2.CAP_PROP_FRAME_COUNT: self.count, cv2.CAP_PROP_FPS: self.count / len(self.whole) * 10,
                cv2.CAP_PROP_POS_MSEC: 100 * self.at}[key]

    def release(self) -> None:
        self.at = len(self.whole)


@pytest.mark.parametrize('source, whole, count, told', [
    ('a.mp4', '11101111', 8, 'a.mp4 has 8 frames, but 1 of them cannot be read (from number 4 to 4)'),
    ('a.mp4', '11101110', 8, 'a.mp4 has 8 frames, but 2 of them cannot be read (from number 4 to 8)'),
    ('a.mp4', '11111110', 8, 'a.mp4 has 8 frames, but 1 of them cannot be read (from number 8 to 8)'),
    ('a.mp4', '10000000', 8, 'but 7 of them cannot be read'), ('a.mp4', '0000', 4, 'a.mp4 contains no readable image'),
    ('a.mp4', '1111', 4, ''), ('a.mp4', '1111', 3, ''), ('a.mp4', '1111', -1, ''),
    ('a.webm', '11111111', 800, ''),  # a number that OpenCV estimates from the duration
    (0, '1111', -1, 'camera0 gives no more images after 4: check its connection')])
def test_frames_that_are_missing_are_told(source: str | int, whole: str, count: int, told: str, folder: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path('a.mp4').touch()
    Path('a.webm').touch()
    monkeypatch.setattr(cv2, 'VideoCapture', lambda source: Capture(whole, count))
    numbers: list[int] = []

    def read() -> None:
        for name, _ in images_of(source):
            numbers.append(int(name[-6:]))

    assert told in (refusal(read) if told else str(read()))
    assert numbers == [index + 1 for index, kind in enumerate(whole) if kind == '1']


def test_an_address_is_fetched_if_that_is_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new('RGB', (30, 20)).save(folder / 'black.png')  # a small file
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f'http://127.0.0.1:{server.server_port}'
        (name, actual), = images_of(f'{address}/a.png?x=1', urls=True)
        assert name == 'a.png' and np.array_equal(actual, read_image(folder / 'a.png'))
        for file, most, urls, told in (
                ('a.png', 600, False, 'is an address, but images are only downloaded with urls=True'),
                ('no.png', 600, True, 'HTTPError: HTTP Error 404'),
                ('black.png', 599, True, 'has 30 x 20 pixels (width x height), but at most 599'),
                ('a.png', 99, True, 'a.png has more than 297 bytes: use')):
            monkeypatch.setattr('openmmlab_tools.predict.sources.MAX_PIXELS', most)
            assert told in refusal(images_of, f'{address}/{file}', urls)
        server.shutdown()




@pytest.mark.parametrize('source, told', [
    ('no.png', 'no.png does not exist: pass an image'), ('no.avi', 'no.avi does not exist'),
    ('*.gif', 'no file matches'), ('x.mp4', 'x.mp4 contains no readable image'),
    (torch.zeros(8, 8), 'a tensor has shape (8, 8), but must be (3, H, W)'),
    (torch.full((3, 8, 8), 2.), 'has values from 2 to 2, but must have values from 0 to 1'),
    (torch.zeros(3, 8, 8, dtype=torch.int64), 'type int64, but must be (H, W, 3), RGB, uint8'),
    (np.zeros((8, 8), np.uint8), 'an image has shape (8, 8) and type uint8, but must be (H, W, 3), RGB, uint8: conv'),
    *((empty, 'an image has shape (0, 8, 3), so it has no pixels: remove it.')
      for empty in (np.zeros((0, 8, 3), np.uint8), Image.new('RGB', (8, 0)), torch.zeros(3, 0, 8))),
    (None, 'an image is a NoneType, but must be'), (True, 'an image is a bool, but must be'),
    (b'ab', 'an image is a bytes, but must be'), (BytesIO(b'ab'), 'an image is a BytesIO, but'),
    ({0: 'a.png'}, 'an image is a dict, but must be'),
    (99, 'camera99 contains no readable image'), (-1, 'camera -1 does not exist')], ids=lambda value: (
        value if isinstance(value, str) else type(value).__name__))
def test_what_is_no_image_is_one_sentence(source: object, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
                                          ) -> None:
    monkeypatch.chdir(folder)
    Path('x.mp4').write_bytes(b'no video')
    assert told in refusal(lambda: list(images_of(source)))


PIXELS = np.zeros((8, 9, 3), np.uint8)
JUNK = st.one_of(
    st.none(), st.booleans(), st.floats(), st.complex_numbers(), st.binary(max_size=9), st.text(max_size=9),
    st.integers(max_value=-1), st.integers(min_value=50), st.dates(), st.dictionaries(st.text(), st.integers()),
    st.sampled_from([
        '', 'a\0.png', '*\0', 'x' * 5000, '[', '**', Path(), Path('no.png'), object(), type, np.float64('nan'), ...,
        *(PIXELS.astype(kind) for kind in ('bool', 'complex', 'object', 'float16', 'datetime64[s]', 'U3', 'V4', '>i2')),
        np.array(1), np.zeros((0, 3, 3), np.uint8), PIXELS[0], PIXELS[None], PIXELS[::2, ::-1],
        np.ma.array(PIXELS, mask=True), np.zeros((8, 9, 3), [('a', 'u1')]),
        *(Image.new(mode, (9, 8)) for mode in ('1', 'F', 'LAB', 'I;16')),
        Image.new('RGB', (0, 8)), torch.zeros(3, 8, 9, device='meta'), torch.tensor(1.),
        torch.zeros(3, 8, 9).to_sparse(), torch.quantize_per_tensor(torch.zeros(3, 8, 9), 1., 0, torch.quint8),
        torch.nested.nested_tensor([torch.zeros(3, 8, 9)]), torch.zeros(3, 8, 9, requires_grad=True),
        torch.zeros(3, 8, 9, dtype=torch.complex64), torch.zeros(3, 8, 9, dtype=torch.complex64).conj().imag,
        torch.zeros(3, 8, 9, dtype=torch.bfloat16), torch.zeros(3, 8, 9, dtype=torch.float8_e4m3fn),
        torch.full((3, 8, 9), torch.nan), torch.zeros(3, 8, 9, dtype=torch.bool), torch.zeros(3, 9, 8).transpose(1, 2),
        torch.zeros(1, 3, 0, 9), nn.Parameter(torch.zeros(3, 8, 9))]))


@settings(max_examples=300)
@given(st.recursive(JUNK, lambda inner: st.lists(inner, max_size=3), max_leaves=3), st.booleans())
def test_any_source_is_images_or_one_sentence(source: object, as_rgb: bool) -> None:
    try:
        actual = [page for named in islice(images_of(source, False, as_rgb), 3) for page in pages_of(named, as_rgb)]
    except UserError as error:
        assert '\n' not in printable(error) and len(str(error)) < 10_000
    else:
        for _, image in actual:
            if isinstance(image, np.ndarray):
                assert image.ndim == 3 and image.size and image.dtype.kind in 'uif'
                assert not as_rgb or (image.dtype == np.uint8 and image.shape[2] == 3)
