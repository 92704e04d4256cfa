"""Changes small data sets and configs at random, and does with each what new_config.py and check_dataset.py do.

Each case runs in a process of its own, and must end in a result, or in one sentence. Prints a table by kind of data,
and each other error. Exits with 1 if there is one, or a process crashed or took too long.
"""
import copy
import gc
import io
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from mmengine.registry import DATASETS, DefaultScope
from rich.console import Console

from cpvt_mm.data_config import BASES, CONFIGS, new_config
from cpvt_mm.swap import read_config
from lab.commands.toy_shapes import to_annotation
from lab.fuzzing import Case, cut, flip, fuzz, insert, parser
from openmmlab_data.checking import measure_all, to_table_of_findings
from openmmlab_data.file_checks import check_files, find_copies
from openmmlab_runs.data.config_datasets import plan_checks
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import as_sentence, exit_on_error
from tests.openmmlab_data import layouts

# What a value may become: of another type, empty, of no number, or so large that it takes time or memory.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, .5, 1e7, 1e9, 1e308, -1e308, 10**30, float('nan'), float('inf'), '', 'x', '0', '12',
    '1e9', 'train', '../x', '/', 'a\0b', '\ud800', 'ü' * 300, '{{ fileDirname }}', [], {}, [[]], [1, 2], {'a': 1},
    [[[[[1]]]]], 'a' * 10_000]


class Data(NamedTuple):
    """A kind of data: writes a data set to a folder, and names the files to change in it."""
    write: Callable[[Path], None]
    changed: str


def write_coco(root: Path) -> None:
    """Writes objects with polygons and with run-length encodings, and crowds."""
    mask = to_annotation(layouts.label_map().astype(bool))
    polygon = dict(mask, segmentation=[np.ravel(layouts.POLYGON).tolist()])
    crowd = dict(mask, iscrowd=1, segmentation=dict(size=[layouts.HEIGHT, layouts.WIDTH], counts=[0, 9, 4791]))

    def with_masks(split: str, content: dict[str, Any]) -> None:
        content['annotations'] = [dict(one, **shape, id=3 * one['id'] + index) for one in content['annotations']
                                  for index, shape in enumerate((polygon, mask, crowd))]

    layouts.coco(root, with_masks)


def write_config(root: Path) -> None:
    write_coco(root)
    new_config(root, root / 'my.py', base=str(root.parent / 'boxes.py'))


DATA = {'COCO': Data(write_coco, 'annotations/*'), 'COCO, images': Data(write_coco, '*2017/*'),
        'Pascal VOC': Data(layouts.voc, 'Annotations/*'),
        'YOLO': Data(partial(layouts.yolo, line=f'{layouts.BOX_LINE}\n{layouts.POLYGON_LINE}'), 'labels/*/*'),
        'data.yaml': Data(layouts.yolo_named('path: .\ntrain: images/train\nval: images/val\nnc: 2'), '*.yaml'),
        'config': Data(write_config, 'my.py')}


def change(rng: random.Random, path: Path) -> None:
    """Changes a file: a value of its structure, a number of its text, or bytes."""
    content = path.read_bytes()
    how = rng.random()
    try:
        if how < .6 and path.suffix in ('.json', '.yaml'):
            is_json = path.suffix == '.json'
            parsed = json.loads(content) if is_json else yaml.safe_load(content)
            for _ in range(rng.choice((1, 1, 2))):
                parsed = change_value(rng, parsed)
            content = (json.dumps(parsed) if is_json else yaml.safe_dump(parsed)).encode('utf-8', 'surrogatepass')
        elif how < .8 and path.suffix != '.jpg':
            content = change_word(rng, content)
        else:
            content = rng.choice((flip, cut, insert))(rng, content)
    except (yaml.YAMLError, UnicodeError):  # YAML cannot write some values
        content = flip(rng, content)
    path.write_bytes(content)


def change_value(rng: random.Random, root: Any) -> Any:
    """Replaces, removes or doubles a value anywhere in lists and dicts."""
    places = list(walk(root)) if isinstance(root, dict | list) else []
    if not places:
        return copy.deepcopy(rng.choice(VALUES))
    holder, key = rng.choice(places)
    how = rng.random()
    if how < .15:
        del holder[key]
    elif how < .25 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how < .35 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES))] = holder.pop(key)
    elif how < .45 and isinstance(holder[key], int | float):
        holder[key] = str(holder[key])
    elif how < .5:
        holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return root if rng.random() < .99 else rng.choice(VALUES)


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields all places of a structure: the list or dict, and the index or key."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from walk(inner)


def change_word(rng: random.Random, content: bytes) -> bytes:
    """Replaces a word or number of a text."""
    words = list(re.finditer(rb'[\w.]+', content))
    if not words:
        return content
    word = rng.choice(words)
    new = str(rng.choice(VALUES)).encode('utf-8', 'surrogatepass')
    return content[:word.start()] + new + content[word.end():]


def write_bases(folder: Path) -> None:
    """Writes the configs that new_config takes models from, without `_base_`, which takes a second to read."""
    for task in ('boxes', 'instances'):
        read_config(str(CONFIGS / BASES[task][True])).dump(folder / f'{task}.py')


def run_case(kind: str, root: Path, base: Path) -> None:
    """Writes a config for a folder, checks its annotations and files, and builds the datasets that have no fault."""
    config = root / 'my.py'
    if kind != 'config':
        new_config(root, config, base=str(base))
    cfg = load_config(config)
    plans = plan_checks(cfg)
    results = [(plan, list(check_files(cfg, plan))) for plan in plans]
    findings = [*(finding for plan in plans for finding in plan.findings),
                *(finding for _, checks in results for one in checks for finding in one.findings),
                *(finding for _, finding in find_copies(results))]
    console = Console(file=io.StringIO())
    console.print(to_table_of_findings(findings))
    measure_all(cfg, results, console)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        for plan in plans:
            if not any(finding.kind in plan.fatal for finding in plan.findings):
                with as_sentence(f'{plan.name} cannot be built', 'correct it', OSError):
                    DATASETS.build(cfg[f'{plan.splits[0]}_dataloader'].dataset)


def prepare(originals: Path, rng: random.Random, kind: str, root: Path) -> Case:
    """Copies the data of a kind and changes it; returns the call that uses it."""
    shutil.copytree(originals / kind, root)
    if kind == 'config':
        (root / 'my.py').write_text((root / 'my.py').read_text().replace(str(originals / kind), str(root)))
    change(rng, rng.choice(sorted(root.glob(DATA[kind].changed))))
    base = rng.choice(('boxes.py', 'instances.py')) if 'COCO' in kind else 'boxes.py'
    return exit_on_error(partial(run_case, kind, root, originals / base))


def main() -> None:
    arguments = parser(__doc__, 5000)
    arguments.add_argument('--kinds', nargs='+', choices=DATA, default=list(DATA), help='kinds of data')
    args = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        originals = Path(name)
        write_bases(originals)
        for kind in args.kinds:
            DATA[kind].write(originals / kind)
        with redirect_stdout(io.StringIO()):  # what is imported and cached here need not be in each process
            shutil.copytree(originals / args.kinds[0], originals / 'first')
            run_case(args.kinds[0], originals / 'first', originals / 'boxes.py')
        gc.collect()
        gc.freeze()
        fuzz(args, args.kinds, partial(prepare, originals), originals, memory=2 << 30, seconds=30)
