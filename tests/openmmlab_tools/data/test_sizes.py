"""new-config, check, train and the loading of samples compare sizes, also of images that EXIF data turns."""
import json
from pathlib import Path

import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from openmmlab_tools.data.checked_pipeline import CheckedPipeline
from openmmlab_tools.data.config_datasets import check_before_training, plan_checks
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.own_data.descriptions import check_written
from openmmlab_tools.own_data.file_checks import check_files
from openmmlab_tools.own_data.written_labels import write_labels
from openmmlab_tools.readers.own_data import find_data
from tests.helpers import refusal
from tests.tools.conftest import save

WIDE, SQUARE = (24, 36), (30, 30)


def write_data(root: Path, kind: str, size: tuple[int, int], turn: int, annotated: tuple[int, int]) -> None:
    """Writes images of a size, as stored, that EXIF data turns, with label maps or COCO's annotations of another size.
    """
    exif = Image.Exif()
    exif[0x0112] = turn
    for split in ('train', 'val'):
        (root / f'{split}/images').mkdir(parents=True)
        Image.new('RGB', size[::-1]).save(root / f'{split}/images/{split}.jpg', exif=exif)
        if kind == 'label maps':
            save(root / f'{split}/masks/{split}.png', np.eye(*annotated, dtype=np.uint8))
        else:
            (root / f'{split}.json').write_text(json.dumps(dict(
                images=[dict(id=1, file_name=f'{split}.jpg', height=annotated[0], width=annotated[1])],
                categories=[dict(id=1, name='a')],
                annotations=[dict(id=1, image_id=1, category_id=1, bbox=[2, 2, 9, 9], area=81, iscrowd=0)])))


SIZE = {'label maps': Kind.LABEL_MAP_SIZE, 'COCO': Kind.IMAGE_SIZE}


@pytest.mark.parametrize('kind', SIZE)
@pytest.mark.parametrize('size, turn, annotated, found, words', [
    (WIDE, 1, WIDE, None, ''), (WIDE, 6, WIDE[::-1], None, ''), (SQUARE, 1, SQUARE, None, ''),
    (SQUARE, 1, WIDE, 'size', '30 x 30'),  # resized after it was labelled
    (WIDE, 6, WIDE, 'size', ', which its EXIF data turns'), (WIDE, 6, SQUARE, 'size', '36 x 24'),
    *((SQUARE, turn, SQUARE, Kind.TURNED, f'(EXIF orientation {turn})') for turn in (3, 6, 8)),
    (WIDE, 3, WIDE, Kind.TURNED, '(EXIF orientation 3)')])
def test_each_entrance_tells_of_sizes(kind: str, size: tuple[int, int], turn: int, annotated: tuple[int, int],
                                      found: Kind | str | None, words: str, tmp_path: Path, log: list) -> None:
    write_data(tmp_path / 'data', kind, size, turn, annotated)
    found = SIZE[kind] if found == 'size' else found
    data = find_data(tmp_path / 'data')
    cfg = Config(dict(default_scope='mmseg' if data.is_semantic else 'mmdet', **{
        f'{split}_dataloader': dict(dataset=dict(one, data_root=f'{data.root}/', metainfo=dict(classes=data.classes)))
        for split, one in write_labels(tmp_path / 'labels', data).items()}))
    told, is_fatal = check_written(cfg)
    assert is_fatal == (found is SIZE[kind])
    assert [words in one and found.text in one for one in told] == [True] * bool(found)
    checked = [finding for plan in plan_checks(cfg) for files in check_files(plan) for finding in files.findings]
    assert {one.kind for one in checked} == ({found} if found else set())
    assert all(words in one.detail for one in checked)
    log.clear()
    check_before_training(cfg, ('train', 'val'))
    notes = [text for level, text in log if text.startswith('note: ')]
    assert [words in text for text in notes] == [True] * 2 * (found is Kind.TURNED)
    for plan in plan_checks(cfg):
        assert plan.dataset is not None
        sample, load = plan.dataset.get_data_info(0), CheckedPipeline(
            [LoadImageFromFile(), *([LoadAnnotations()] if data.is_semantic else [])], is_coco=not data.is_semantic,
            num_classes=len(data.classes))
        if found is SIZE[kind]:
            message = refusal(load, sample)
            # The loaded pixels do not tell that EXIF data turned them.
            assert (words in message or 'EXIF' in words) and ' pixels (height x width), but ' in message
            assert message.endswith(': put the right file there (the command check finds all).')
        else:
            assert load(sample)['ori_shape'] == (size if turn in (1, 3) else size[::-1])
