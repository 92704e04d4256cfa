"""A hook that compares how the processes of a run begin."""
from mmengine.dist import all_gather_object, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.nn.parallel import DistributedDataParallel

from cpvt_mm.engine.ranks import differences, end_all, hash_weights, settings
from cpvt_mm.errors import UserError
from cpvt_mm.registry import HOOKS


@HOOKS.register_module()
class SameStartHook(Hook):
    """Ends training before its first step if ranks differ in iteration, seed, settings or weights.

    Otherwise, they would wait for each other for ever, or silently train different models. The main process raises a
    UserError that names the rank and what differs; the others exit with status 1. Weights are compared where each rank
    has all of them, as with DistributedDataParallel.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        if get_world_size() == 1:
            return
        own = dict(settings(runner.cfg), iteration=str(runner.iter),
                   seed=str((runner.cfg.get('randomness') or {}).get('seed')))
        if isinstance(runner.model, DistributedDataParallel):
            own['the hash of the weights'] = hash_weights(runner.model)
        first, *others = all_gather_object(own)
        for rank, other in enumerate(others, 1):
            if other != first:
                end_all(UserError(f'rank {rank} differs from rank 0: {differences(other, first)}: start all ranks with '
                                  'the same config, options and files.'))
