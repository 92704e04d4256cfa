"""Converts CamVid, in the version of the SegNet tutorial, to the layout of mmseg.

Run it again to continue after an interruption.
"""
from lab.datasets.converters import find_camvid, run, write_camvid
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error


@exit_on_error
@resumable
def main() -> None:
    run(__doc__, find_camvid, write_camvid, 'data/camvid',
        'the folder CamVid, which contains train, trainannot, val, valannot, test and testannot')
