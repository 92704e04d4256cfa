"""Weights of classes in mmseg's cross entropy, where mmseg itself fails with them."""
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

Criterion = Callable[..., Tensor]


def mend_class_weights(model: nn.Module) -> None:
    """Makes `class_weight` of mmseg's CrossEntropyLoss work for any labels and images, in place.

    With a softmax, mmseg averages by the weight of each label, which it looks up also for pixels that are ignored: it
    raises an IndexError for 255, on a GPU an assertion that ends the process. The forks (onedl) raise an IndexError
    with `avg_non_ignore`. Here, pixels without a class have no weight. With a sigmoid, mmseg takes the weights for
    columns of the image. Here, they are for channels.
    """
    modules: Iterator[Any] = model.modules()
    for module in modules:
        criterion = getattr(module, 'cls_criterion', None)
        mended = MENDED.get(f'{getattr(criterion, "__module__", "")}.{getattr(criterion, "__name__", "")}')
        if mended and module.class_weight is not None:
            module.cls_criterion = partial(mended, criterion)


def _softmax(criterion: Criterion, scores: Tensor, labels: Tensor, *args: Any, class_weight: Tensor, reduction: str,
             avg_factor: Any, avg_non_ignore: bool, ignore_index: int, **kwargs: Any) -> Tensor:
    counts = (labels >= 0) & (labels < len(class_weight))
    if reduction == 'mean' and avg_factor is None and (avg_non_ignore or not counts.all()):
        if avg_non_ignore:
            counts &= labels != ignore_index
        avg_factor = class_weight[labels[counts]].sum()
    return criterion(scores, labels, *args, class_weight=class_weight, reduction=reduction, avg_factor=avg_factor,
                     avg_non_ignore=avg_non_ignore, ignore_index=ignore_index, **kwargs)


def _sigmoid(criterion: Criterion, scores: Tensor, labels: Tensor, *args: Any, class_weight: Tensor, **kwargs: Any
             ) -> Tensor:
    if len(class_weight) == scores.shape[1]:
        class_weight = class_weight.reshape(-1, *[1] * (scores.dim() - 2))
    return criterion(scores, labels, *args, class_weight=class_weight, **kwargs)


# By the function of mmseg, which they call.
MENDED: dict[str, Criterion] = {'mmseg.models.losses.cross_entropy_loss.cross_entropy': _softmax,
                                'mmseg.models.losses.cross_entropy_loss.binary_cross_entropy': _sigmoid}
