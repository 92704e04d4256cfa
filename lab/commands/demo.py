"""Predicts with the model in demo/nuclei, then trains, tests and shows a detector and a segmentor of toy shapes."""
import argparse
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from lab.commands.toy_shapes import write_toy_shapes
from openmmlab_tools.errors import exit_on_error, say

ROOT = Path(__file__).parents[2]
NUCLEI = ROOT / 'demo/nuclei'
DATA = Path('data/toy_shapes')  # the folder in the toy configs
NUM_TRAIN, NUM_VAL = 800, 100
CONFIGS = {'Mask R-CNN': 'mask-rcnn_pyramid-cpvt-nano-distilled_fpn_toy-shapes',
           'SegFormer': 'segformer_pyramid-cpvt-nano-distilled_toy-shapes-128x128'}
METRICS = {'coco/bbox_mAP': 'box AP', 'coco/bbox_mAP_50': 'box AP50', 'coco/segm_mAP': 'mask AP', 'mIoU': 'mIoU'}


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'), help='folder for all outputs')
    args = parser.parse_args()
    from mmengine.runner import find_latest_checkpoint

    from openmmlab_tools.engine import load_config, test, train
    from openmmlab_tools.engine.console import readable_console
    from openmmlab_tools.predict.predicting import predict
    step = count(1)

    def begin(task: str) -> None:
        say(f'[{next(step)} of {2 + 2 * len(CONFIGS)}] {task}')

    begin('Finding nuclei in a microscope image')
    with readable_console():
        [prediction] = predict(NUCLEI / 'example.png', next(NUCLEI.glob('*.py')), NUCLEI / 'model.safetensors')
    painted = args.work_dir / 'nuclei.png'
    args.work_dir.mkdir(parents=True, exist_ok=True)
    prediction.save(painted)
    say(f'Look at {painted}')
    begin('Drawing the toy data')
    for _ in track(write_toy_shapes(DATA, NUM_TRAIN, NUM_VAL), 'Drawing', total=NUM_TRAIN + NUM_VAL):
        pass
    table = Table('model', 'metric', 'value', title=f'On the validation images of {DATA}')
    for model, name in CONFIGS.items():
        config, work_dir = ROOT / f'configs/toy/{name}.py', args.work_dir / name
        begin(f'Training {model}')
        if (work_dir / 'last_checkpoint').exists():
            print(f'Resuming from the last checkpoint in {work_dir}: remove the folder to train from the beginning.')
        train(load_config(config, work_dir=str(work_dir)), resume='auto')
        begin(f'Testing {model}')
        metrics = test(load_config(config, work_dir=str(work_dir)), find_latest_checkpoint(work_dir),
                       show_dir=work_dir / 'painted', report=work_dir / 'report')
        for key, title in METRICS.items():
            if key in metrics:
                table.add_row(model, title, f'{metrics[key] / (100 if key == "mIoU" else 1):.3f}')  # mmseg has percents
    Console().print(table)
    print('Images painted with ground truth (left) and prediction (right), and a report of each test:')
    for name in CONFIGS.values():
        print(f'  {args.work_dir / name / "painted"}, {args.work_dir / name / "report/index.html"}')
