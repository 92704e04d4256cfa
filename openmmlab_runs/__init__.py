"""Runs of any OpenMMLab project: training, testing and predicting that neither loses nor mixes up anything.

It serves detectors of mmdet, segmentors of mmseg and classifiers of mmpretrain, and knows no package of models:

- `engine`: reads a config, adds what a run needs to it (`prepare`), trains and tests.
- `hooks`: whole checkpoints, resuming to the bit, losses that are no numbers, the report.
- `checkpoints`: fetches and reads files of weights without running their code, and compares them with a model.
- `data`: datasets of configs, and checks of their annotations and images.
- `pictures`, `predict`, `evaluation`: images, predictions for them, and metrics.

Types in configs have this package's name, such as `type='openmmlab_runs.DurableCheckpointHook'`.
"""
import openmmlab_compat

openmmlab_compat.install()  # where no .pth file did, as in a clone that is not installed
