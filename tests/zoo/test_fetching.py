"""Released weights have a name: they come from the first address that has them, and a note tells their terms."""
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch

from cpvt_mm import PLAIN_ARCHS, PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.zoo.load import load_pretrained
from cpvt_mm.zoo.members import RELEASED, WEIGHTS, Member
from openmmlab_tools.checkpoints.fetching import CHECKSUM, cache_file
from openmmlab_tools.checkpoints.reading import read_checkpoint, read_weights
from tests.backbones import GOLDEN, NARROW
from tests.helpers import ROOT, refusal
from tests.openmmlab_tools.checkpoints.server import Server, fetched, saved, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / 'served') as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The folder that downloads go to; there is none yet."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    return tmp_path / 'hub/checkpoints'


def test_a_name_that_is_not_known_is_told_with_a_similar_one() -> None:
    told = refusal(read_checkpoint, 'cpvt_mm://pyramid-cpvt-smal')
    assert ': did you mean pyramid-cpvt-small; there are cpvt_mm://pyramid-' in told


def test_a_hub_that_does_not_answer_is_asked_once_for_a_backbone(server: Server, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, '-c', """
from cpvt_mm import CPVT
try:
    CPVT.from_pretrained('owner/mute')
except Exception as error:
    print(f'{type(error).__name__}: {error}')
"""], capture_output=True, text=True, cwd=ROOT, env={**os.environ, 'HF_ENDPOINT': server.url, 'HF_HOME': str(tmp_path)})
    assert server.requests == ['/owner/mute/resolve/main/model.safetensors']
    host = server.url.removeprefix('http://')
    assert done.stdout.splitlines()[-1] == (
        'UserError: owner/mute is not in the cache of the Hugging Face hub, and cannot be downloaded '
        f'({host} does not answer): check the network, or pass a local folder.'), done.stderr


def test_urls_of_weights_are_tried_in_order_and_their_terms_are_told(server: Server, cache: Path, log: list,
                                                                     monkeypatch: MonkeyPatch) -> None:
    def release(*urls: str) -> str:
        monkeypatch.setitem(RELEASED, 'mine', Member('PyramidCPVT', 'small', files=urls, licence='My License'))
        return 'cpvt_mm://mine'

    cut, good, gone = server.add('/cut.pth', saved()), server.add('/good.pth', saved()), f'{server.url}/gone.pth'
    told = refusal(read_checkpoint, release(cut, gone))
    assert told.startswith(f'checkpoint cpvt_mm://mine cannot be fetched ({cut}: ValueError: the ')
    assert f'; {gone}: HTTPError: HTTP Error 404: File not found): check' in told
    assert f'download {cut} on another machine and save it as {cache_file(cut)}. To' in told
    server.requests.clear()
    log.clear()
    for _ in range(2):
        assert read_weights(release(cut, good, gone)).tensors.keys() == {'weight'}
    assert server.requests == ['/cut.pth', '/good.pth'] and fetched(cache) == [cache_file(good).name]
    terms, failure = [text for level, text in log if level == 'WARNING']
    assert terms == 'these weights are under the My License'
    assert failure.startswith(f'{cut}: ValueError: the received file is cut, ')

    # The eps is that of the weights, not of their format, 1e-5.
    url = server.add('/mmseg.pth', (GOLDEN / 'mmseg.pth').read_bytes())
    for address in (release(url), url):
        log.clear()
        for eps in (1e-6, 1e-5):
            load_pretrained(PyramidCPVT(NARROW, norm_eps=eps), address)
        [warning] = [text for level, text in log if level == 'WARNING' and 'License' not in text]
        assert warning.startswith(f'weights of {address} have norm_eps 1e-06, but the backbone has 1e-05')


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_name_a_backbone_and_files(name: str) -> None:
    released, urls = RELEASED[name], list(RELEASED[name].files)
    assert released.name in {'PyramidCPVT': PYRAMID_ARCHS, 'CPVT': PLAIN_ARCHS}[released.backbone]
    if name == 'pyramid-cpvt-nano':  # part of the package
        assert [Path(url).parent for url in urls] == [WEIGHTS] and Path(urls[0]).is_file()
    else:
        assert all(url.startswith(('https://', 'hf://')) for url in urls)
    assert released.name.replace('pvtv2', 'pvt_v2').replace('-', '_') in urls[-1]
    terms = {'pyramid-cpvt-nano': 'see cpvt_mm/zoo/weights/README.md', 'mit': 'not commercial use',
             'dinov3': 'DINOv3 License, https://', 'lingbot': 'Apache License 2.0'}
    assert terms.get(name, terms.get(name.partition('-')[0], 'Apache-2.0')) in released.licence
    assert released.norm_eps == (1e-5 if 'DINOv3 License, https://' in released.licence else 1e-6)
    assert name.startswith((*terms,)) == (released.licence != 'Apache-2.0')
    assert len(urls) == 1 or name.startswith(('dinov', 'lingbot', 'pvtv2')) or CHECKSUM.search(urls[0])
