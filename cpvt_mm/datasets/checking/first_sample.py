"""One real sample of a dataset, through its pipeline."""
import logging
import os
from typing import Any

from mmengine.logging import print_log

from cpvt_mm.errors import UserError, explain

from .images import check_image


def load_first(dataset: Any, name: str) -> Any:
    """Loads one sample through the pipeline, and warns of what is wrong with its image, such as 16 bits a channel.

    Args:
        dataset: A dataset that is built.
        name: The dotted name of its config, for the error.

    Raises:
        UserError: If it does not pass.
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
    except Exception as error:  # transforms raise what they like
        raise UserError(f'{name}: sample {path or 0} does not pass the pipeline ({explain(error)}): correct '
                        f'{name}.pipeline of the config, or the annotation.') from error
