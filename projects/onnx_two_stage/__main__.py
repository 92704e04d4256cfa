"""Exports a Faster R-CNN or Mask R-CNN to ONNX, and compares the file with the model at ten sizes."""
import sys

from cpvt_mm.commands.export import export, parse_args
from cpvt_mm.export import load_part
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import exit_on_error
from projects.onnx_two_stage import to_two_stage


@exit_on_error
def main() -> None:
    sys.argv = ['python -m projects.onnx_two_stage', '--part', 'detector', *sys.argv[1:]]
    args = parse_args()
    cfg = load_config(args.config, args.cfg_options)
    export(args, cfg, load_part(cfg, args.part, args.checkpoint, to_two_stage))


if __name__ == '__main__':
    main()
