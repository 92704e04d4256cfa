"""Runs the pipeline of a dataset on its first sample."""
import logging
import os
from typing import Any

from mmengine.logging import print_log

from cpvt_mm.errors import UserError, explain

from .images import check_image


def load_first(dataset: Any, name: str) -> Any:
    """Loads the first sample with the pipeline, and warns of faults of its image, such as 16 bits per channel.

    Args:
        dataset: A built dataset.
        name: The dotted name of its config, for the message.

    Raises:
        UserError: If the pipeline fails on the sample.
    """
    path = dataset.get_data_info(0).get('img_path') if hasattr(dataset, 'get_data_info') else None
    if isinstance(path, str) and os.path.isfile(path):
        for finding in check_image(path):
            print_log(f'{finding.file} {finding.detail}; tools/misc/check_dataset.py finds all such files.', 'current',
                      logging.WARNING)
    try:
        return dataset[0]
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # transforms can raise any error
        raise UserError(f'{name}: the pipeline fails on sample {path or 0} ({explain(error)}): correct '
                        f'{name}.pipeline of the config, or the annotation.') from error
