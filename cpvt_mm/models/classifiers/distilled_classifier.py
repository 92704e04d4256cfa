"""A classifier that learns from labels and from a teacher."""
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_mm.errors import UserError
from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require
from cpvt_mm.weights.reading import load_weights

from ..arguments import check_keywords

require('mmpretrain')

from mmpretrain.models.classifiers import ImageClassifier  # noqa: E402
from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """An image classifier trained by hard distillation (DeiT, arXiv 2012.12877, section 4).

    The distillation token learns the classes that a teacher predicts for the same batch, after mixing. The teacher is
    frozen: it stays in eval mode and gets no gradients. It is not a submodule, so parameters, state dict and
    checkpoints contain the student only. Training, also a resumed one, loads the teacher from its own checkpoint.
    Testing needs no teacher.

    Args:
        backbone: The config of a backbone that returns pairs of pooled features and distillation token, such as `CPVT`
            with `dist_token`.
        head: The config of a `DistilledHead`.
        teacher: The config of an mmpretrain classifier, built in mmpretrain's scope. It gets the student's input with
            the student's normalization.
        teacher_checkpoint: Path or URL of the teacher's weights; required for training. Defaults to None.
        train_cfg: mmpretrain's batch augmentations. Defaults to None.
        data_preprocessor: The config of mmpretrain's data preprocessor, or the module. Its type defaults to
            'mmpretrain.ClsDataPreprocessor'. Defaults to None: no other arguments.
        init_cfg: mmengine's initialisation config. Defaults to None.

    Attributes:
        teacher (nn.Module | None): None until training begins.

    Raises:
        ValueError: If the backbone has no distillation token, or its `out_type` is not 'cls_token' or 'gap'.
        TypeError: If an argument's name is unknown.
        UserError: When training begins, if `teacher_checkpoint` is None or does not fit.
    """

    @check_keywords
    def __init__(self, backbone: dict[str, Any], head: dict[str, Any], teacher: dict[str, Any],
                 teacher_checkpoint: str | None = None, train_cfg: dict[str, Any] | None = None,
                 data_preprocessor: dict[str, Any] | nn.Module | None = None,
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None = None) -> None:
        # mmpretrain names its own parts without a scope, so another current scope would hide them.
        if not isinstance(data_preprocessor, nn.Module):
            data_preprocessor = {'type': 'mmpretrain.ClsDataPreprocessor', **(data_preprocessor or {})}
        super().__init__(backbone, head=head, train_cfg=train_cfg, data_preprocessor=data_preprocessor,
                         init_cfg=init_cfg)
        if getattr(self.backbone, 'dist_token', None) is None:
            raise ValueError(f'The backbone, {type(self.backbone).__name__}, has no distillation token, which '
                             'DistilledClassifier needs: set its dist_token to True.')
        if self.backbone.out_type not in ('cls_token', 'gap'):
            raise ValueError(f"out_type of the backbone is {self.backbone.out_type!r}, but must be 'cls_token' or "
                             "'gap', because DistilledClassifier needs pooled features.")
        self.teacher_config = teacher
        self.teacher_checkpoint = teacher_checkpoint
        self._set_teacher(None)

    def init_weights(self) -> None:
        """Initialises the student and loads the teacher; called when training begins."""
        super().init_weights()
        self._read_teacher()

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """Computes the losses.

        Args:
            inputs: Normalized images `(B, 3, H, W)`.
            data_samples: The samples with the labels.

        Returns:
            See `DistilledHead.loss`.

        Raises:
            ValueError: If teacher and head have different numbers of classes.
            UserError: If `teacher_checkpoint` is None or does not fit.
        """
        if self.teacher is None:
            self._read_teacher()
        with torch.no_grad():
            scores = self.teacher(inputs, mode='tensor')
        if scores.shape[1] != self.head.num_classes:
            raise ValueError(f'The teacher has {scores.shape[1]} classes, but the head has num_classes '
                             f'{self.head.num_classes}: they must be equal.')
        return self.head.loss(self.extract_feat(inputs), data_samples, scores.argmax(dim=1))

    def _read_teacher(self) -> None:
        if self.teacher_checkpoint is None:
            raise UserError('model.teacher_checkpoint is not set, but distillation needs a trained teacher: '
                            "set it in the config, or with --cfg-options, to a file or URL of the teacher's weights.")
        teacher = MMPRETRAIN_MODELS.build({'_scope_': 'mmpretrain', **self.teacher_config})
        load_weights(teacher, self.teacher_checkpoint)
        self._set_teacher(teacher.eval().requires_grad_(False).to(next(self.parameters())))

    def _set_teacher(self, teacher: nn.Module | None) -> None:
        # Bypasses nn.Module.__setattr__, which would register a submodule.
        self.__dict__['teacher'] = teacher

    def __getstate__(self) -> dict[str, Any]:
        """Excludes the teacher from copies, such as EMA's, and from pickles."""
        return {**self.__dict__, 'teacher': None}

    def _apply(self, *args: Any, **kwargs: Any) -> 'DistilledClassifier':
        """Also moves the teacher to another device or dtype."""
        if self.teacher is not None:
            self.teacher._apply(*args, **kwargs)
        return super()._apply(*args, **kwargs)
