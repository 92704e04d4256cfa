"""Sources of images: one, several, and what is refused."""
import functools
import http.server
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from openmmlab_runs.pictures.images import read_image
from openmmlab_runs.predict.sources import images_of
from tests.conftest import refusal
from tests.pictures import random_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """b.png, a.png, and below/c.png."""
    (tmp_path / 'below').mkdir()
    for name in ('b.png', 'a.png', 'below/c.png'):
        random_image(tmp_path / name, 20, 30)
    return tmp_path


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Three frames, each of one grey."""
    path = tmp_path / 'clip.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 5, (32, 16))
    for grey in (0, 100, 200):
        writer.write(np.full((16, 32, 3), grey, np.uint8))
    writer.release()
    return path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Serves the folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


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
            (_, found), = images_of(source)
            assert found.dtype == np.uint8 and np.array_equal(found, pixels)
    assert len(images_of(torch.zeros(4, 3, 8, 8))) == 4


def test_a_video_is_read_frame_by_frame(video: Path) -> None:
    frames = images_of(video)
    name, first = next(frames)
    assert name == 'clip.avi_000001' and first.shape == (16, 32, 3)
    assert [(name, round(frame.mean(), -1)) for name, frame in frames] == [
        ('clip.avi_000002', 100), ('clip.avi_000003', 200)]


def test_an_address_is_fetched_if_that_is_allowed(folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (name, found), = images_of(f'{address}/a.png?x=1', urls=True)
    assert name == 'a.png' and np.array_equal(found, read_image(folder / 'a.png'))
    assert 'is an address, and none is fetched unless' in refusal(images_of, f'{address}/a.png')
    assert 'HTTPError: HTTP Error 404' in refusal(images_of, f'{address}/no.png', urls=True)
    Image.new('RGB', (30, 20)).save(folder / 'black.png')  # a small file
    monkeypatch.setattr('openmmlab_runs.predict.sources.MAX_PIXELS', 599)
    assert 'has 30 x 20 pixels (width x height), but at most 599' in refusal(images_of, f'{address}/black.png', True)
    monkeypatch.setattr('openmmlab_runs.predict.sources.MAX_PIXELS', 99)
    assert 'a.png has more than 297 bytes: take' in refusal(images_of, f'{address}/a.png', urls=True)


def test_what_is_no_image_is_one_sentence(folder: Path) -> None:
    for source, told in ((folder / 'no.png', 'no.png does not exist: pass'), (folder / '*.gif', 'no file matches'),
                         (torch.zeros(8, 8), 'a tensor has shape (8, 8), but must be (3, H, W)'),
                         (torch.full((3, 8, 8), 2.), 'has values from 2 to 2, but must have them from 0 to 1'),
                         (torch.zeros(3, 8, 8, dtype=torch.int64), 'type int64, but must be (H, W, 3), RGB, uint8'),
                         (None, 'an image is a NoneType, but must be'), (99, 'camera99 gives no image'),
                         (-1, 'camera -1 does not exist'), (True, 'an image is a bool, but must be'),
                         (b'ab', 'an image is a bytes, but must be'), (BytesIO(b'ab'), 'an image is a BytesIO, but'),
                         ({0: 'a.png'}, 'an image is a dict, but must be'),
                         (folder / 'no.avi', 'no.avi does not exist')):
        assert told in refusal(lambda source=source: list(images_of(source)))
    (folder / 'x.mp4').write_bytes(b'no video')
    assert 'x.mp4 gives no image: check it' in refusal(images_of, folder / 'x.mp4')
