"""Makes the toy data, trains and tests a detector and a segmentor on it, and prints their metrics."""
import argparse
from pathlib import Path

from mmengine.runner import find_latest_checkpoint
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cpvt_mm.datasets.toy_shapes import write_toy_shapes
from cpvt_mm.engine import load_config, test, train
from cpvt_mm.errors import exit_on_error

ROOT = Path(__file__).parents[2]
CONFIGS = ('mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes', 'upernet_pyramid-cpvt-nano_toy-shapes')
METRICS = {
    'coco/bbox_mAP': 'box AP',
    'coco/bbox_mAP_50': 'box AP50',
    'coco/segm_mAP': 'mask AP',
    'mIoU': 'mIoU',
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'), help='folder for all that it leaves')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    for _ in track(write_toy_shapes(Path('data/toy_shapes')), 'Drawing the toy data', total=900):
        pass
    table = Table(title='On the validation images of data/toy_shapes')
    for column in ('config', 'metric', 'value', 'painted predictions'):
        table.add_column(column, overflow='fold')
    for name in CONFIGS:
        config, work_dir = ROOT / f'configs/toy/{name}.py', str(args.work_dir / name)
        painted = args.work_dir / name / 'painted'
        train(load_config(config, work_dir=work_dir), resume='auto')
        metrics = test(load_config(config, work_dir=work_dir), find_latest_checkpoint(work_dir), painted)
        for key, title in METRICS.items():
            if key in metrics:
                value = metrics[key] / 100 if key == 'mIoU' else metrics[key]  # mmseg counts in percent
                table.add_row(name, title, f'{value:.3f}', f'{painted}/*.png')
    Console().print(table)


if __name__ == '__main__':
    main()
