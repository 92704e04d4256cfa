"""Converts the 2018 Data Science Bowl (stage1_train.zip, unpacked) to images with COCO annotations.

Run it again to continue after an interruption.
"""
from lab.datasets.converters import find_nuclei, run, write_nuclei
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error


@exit_on_error
@resumable
def main() -> None:
    run(__doc__, find_nuclei, write_nuclei, 'data/nuclei',
        'folder of the download, with a folder for each image')
