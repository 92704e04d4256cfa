"""Focal losses (Lin et al. 2017, arXiv 1708.02002, section 3) of `input (N, C)` and classes `target (N,)`.

`weight (C,)` scales the samples of each class; with no elements it is not used. In the sigmoid loss the class C is the
background.
"""
import torch
import torch.nn.functional as F
from torch import Tensor

from .gradients import full

__all__ = ['sigmoid_focal_loss_backward', 'sigmoid_focal_loss_forward', 'softmax_focal_loss_backward',
           'softmax_focal_loss_forward']


def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float,
                               alpha: float) -> None:
    """Fills `output (N, C)`."""
    x, scale = _signed(input, target, weight, alpha)
    output.copy_(scale * torch.sigmoid(-x) ** gamma * F.logsigmoid(x))


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float,
                                alpha: float) -> None:
    """Fills `grad_input (N, C)`."""
    x, scale = _signed(input, target, weight, alpha)
    rest = torch.sigmoid(-x)
    grad = scale * rest ** gamma * (rest - gamma * (1 - rest) * F.logsigmoid(x))
    grad_input.copy_(torch.where(_one_hot(input, target), grad, -grad))


def softmax_focal_loss_forward(softmax: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float,
                               alpha: float) -> None:
    """Fills `output (N,)` from probabilities. A negative target is ignored."""
    p, log_p, scale = _of_target(softmax, target, weight)
    output.copy_(-alpha * scale * (1 - p) ** gamma * log_p)


def softmax_focal_loss_backward(softmax: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor,
                                gamma: float, alpha: float) -> None:
    """Fills `grad_input (N, C)`, the gradient of the logits."""
    p, log_p, scale = _of_target(softmax, target, weight)
    slope = alpha * scale * (gamma * (1 - p) ** (gamma - 1) * p * log_p - (1 - p) ** gamma)
    grad_input.copy_(slope[:, None] * (_one_hot(softmax, target).to(p.dtype) - full(softmax)))


def _one_hot(input: Tensor, target: Tensor) -> Tensor:
    return target[:, None] == torch.arange(input.shape[1], device=input.device)


def _signed(input: Tensor, target: Tensor, weight: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Returns logits with the sign of the target, so that one function computes both terms of the loss, and their
    scale.
    """
    x, positive = full(input), _one_hot(input, target)
    scale = torch.where(positive, -alpha, alpha - 1.).to(x.dtype)
    if weight.numel():
        scale = scale * full(weight)[target.clamp(max=len(weight) - 1)][:, None]
    return torch.where(positive, x, -x), scale


def _of_target(softmax: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the probability of the target class, its logarithm, and the scale of each sample, all `(N,)`."""
    known = target.clamp(min=0)
    p = full(softmax).gather(1, known[:, None])[:, 0]
    scale = (target >= 0).to(p.dtype)
    if weight.numel():
        scale = scale * full(weight)[known]
    return p, p.clamp(min=torch.finfo(torch.float32).tiny).log(), scale
