"""Swaps PyramidCPVT or CPVT into a config of mmdet or mmseg. Writes a config that inherits from it; prints changes."""
import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cpvt_mm.tokens.validation import check_names
from cpvt_mm.zoo.members import RELEASED, SAME, SWAPPED_IN
from openmmlab_tools.cli import command_parser
from openmmlab_tools.errors import UserError, say
from openmmlab_tools.texts import shell

if TYPE_CHECKING:
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument('config', help='config file, or a name such as mmdet::retinanet/retinanet_r50_fpn_1x_coco.py')
    parser.add_argument('out', type=Path, help='file to write; must not exist')
    parser.add_argument('--backbone', choices=(SAME, *SWAPPED_IN),
                        help='the new backbone. same: keep the architecture and weights of PVT, PVT v2, MiT or '
                        'PCPVT. CPVT and names of its weights: for plain transformers, whose maps all have stride 16. '
                        'If not given: same if possible, else PyramidCPVT')
    parser.add_argument('--arch', help='size of PyramidCPVT or CPVT; small if not given; ' + '; '.join(
        f'{name}: {", ".join(archs)}' for name, archs in SWAPPED_IN.items() if name not in RELEASED))
    parser.add_argument('--checkpoint', help='weights of the backbone, a path or URL; if not given, the weights '
                        'that --backbone names, such as dinov3-small, or random weights')
    parser.add_argument('--data', metavar='CONFIG', help='config whose data and schedule replace those of CONFIG. '
                        'For a folder with labels, use cpvt_mm new-config --from instead')
    parser.add_argument('--optimizer', action='store_true',
                        help='train with AdamW, without weight decay on position encodings and norms')
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    archs = SWAPPED_IN['PyramidCPVT' if args.backbone in (None, SAME) else args.backbone]
    check_names(f'an arch of {args.backbone or "PyramidCPVT"}', [args.arch or archs[0]], archs, UserError)
    from cpvt_mm.models.create import load_backbone
    from cpvt_mm.swap import read_config, swap_backbone, write_config
    from cpvt_mm.zoo.load import load_pretrained
    from openmmlab_tools.config_files import changes, check_model_of
    from openmmlab_tools.own_data.taken_data import take_data
    old = read_config(args.config)
    new, is_same = swap_backbone(old, args.arch, args.checkpoint, args.optimizer, args.backbone)
    if args.checkpoint and '://' not in args.checkpoint and 'backbone' in new.model:
        load_pretrained(load_backbone(new), args.checkpoint)  # a UserError if they do not fit
    if args.data:
        new = take_data(new, read_config(args.data))
    check_model_of(new)
    write_config(old, new, args.config, args.out)
    say(*changes(old.to_dict(), new.to_dict()), '')
    tell(new, is_same, args)


def tell(new: 'Config', is_same: bool, args: argparse.Namespace) -> None:
    """Prints what a user must know of weights, optimizer and outputs, and the next command."""
    has_weights = new.get('load_from') or (new.model.get('backbone') or {}).get('init_cfg')
    if not (args.checkpoint or args.backbone in RELEASED or has_weights):
        say('The backbone starts from random weights.')
    optimizer = (new.get('optim_wrapper') or {}).get('optimizer')
    if is_same:
        say('The backbone is the same. If a side of an image is no multiple of 32, the outputs differ by some percent, '
            'because the old backbone drops rows and columns. See docs/results/pvt_family.md.')
    elif optimizer and optimizer.type != 'AdamW':
        say(f'The optimizer stays {optimizer.type} with lr {optimizer.lr}, which suits the old backbone: pass '
            '--optimizer to set AdamW.')
    elif optimizer and args.optimizer:
        base = (new.get('auto_scale_lr') or {}).get('base_batch_size')
        say(f'The optimizer is AdamW with lr {optimizer.lr} and weight_decay {optimizer.weight_decay}' + (
            f', for {base} images a step: train with --auto-scale-lr for another batch size.' if base else '.'))
    say(f'Wrote {args.out}. Next: {shell("cpvt_mm", "train", args.out)}')
