"""A hook that measures a trained model before it is trained further."""
from mmengine.hooks import Hook
from mmengine.runner import Runner

from openmmlab_tools.errors import show
from openmmlab_tools.registry import HOOKS


@HOOKS.register_module()
class ValidateFirstHook(Hook):
    """Validates once before the first iteration, so that the results show whether training helps.

    With `save_best`, the start weights are saved as the best checkpoint until a later checkpoint is better. A resumed
    run does not validate again.
    """

    priority = 'LOWEST'  # after hooks that prepare for an epoch

    def before_train_epoch(self, runner: Runner) -> None:
        if runner.iter == 0 and runner.val_loop is not None:
            show('Validating before the first iteration, so that you can see whether training helps:')
            runner.val_loop.run()
