"""A sheet of samples takes seconds, however many objects an image has."""
import json
from pathlib import Path

from openmmlab_tools.engine import load_config
from openmmlab_tools.own_data.painted_samples import MOST, draw_sheet
from tests.helpers import toy_overrides
from tests.openmmlab_tools.toy import DETECTOR


def test_a_part_of_many_objects_is_painted_and_the_title_tells_how_many(data: Path) -> None:
    file = data / 'instances_training.json'
    coco = json.loads(file.read_text())
    first, second, *_ = coco['images']
    few, many = (next(annotation for annotation in coco['annotations'] if annotation['image_id'] == image['id'])
                 for image in (first, second))
    coco['annotations'] = [dict(few, id=1), *(dict(many, id=number) for number in range(2, 20 * MOST + 3))]
    file.write_text(json.dumps(coco))
    cfg = load_config(DETECTOR, toy_overrides(data))
    sheet = draw_sheet(cfg.train_dataloader.dataset.to_dict(), cfg.default_scope)
    assert sheet
    titles = [axes.get_title() for axes in sheet.axes]
    assert Path(first['file_name']).name in titles
    assert f'{Path(second["file_name"]).name} ({-(-(20 * MOST + 1) // 21)} of {20 * MOST + 1} objects)' in titles
