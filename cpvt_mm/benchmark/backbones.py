"""Backbones alone."""
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cpvt_mm.complexity import count_flops
from cpvt_mm.models.backbones.pyramid_cpvt import ARCHS

from .candidates import PEERS, Candidate, build_backbone
from .settings import Setting
from .steps import Step
from .weights import give_weights, max_abs_diff, reference


@dataclass(frozen=True)
class Backbones:
    """A forward pass, or one forward and backward: gradients of all weights from given ones of the four maps.

    All that are the same pyramid have the same weights.

    Attributes:
        arch: Name of the arch whose size all have.
        drop_path_rate: Of all of them. Defaults to 0.2.
        device: 'cpu' or 'cuda'. Defaults to 'cpu'.
        channels_last: Whether images and weights are laid out so. Defaults to False.
    """
    arch: str
    drop_path_rate: float = 0.2
    device: str = 'cpu'
    channels_last: bool = False

    @property
    def _format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        model = self._build(candidate)
        fmt = PEERS[candidate.name].format
        has_same_weights = fmt is not None and give_weights(model, fmt, ARCHS[self.arch])
        model = model.to(self.device, memory_format=self._format).train(setting.mode == 'train')
        candidate.compile(model)
        # It would be compiled a second time to be compared in another mode or dtype.
        is_comparable = has_same_weights and (not candidate.shapes or (setting.mode, setting.dtype) == (
            'forward', 'fp32'))
        return Step(model, _call(model, self._images(setting), setting), is_comparable=is_comparable)

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """None for a candidate that looks at its data."""
        # Without data: it takes no time and no memory, and there is no fused kernel to be counted wrongly.
        model = self._build(candidate.plain()).to('meta').train(setting.mode == 'train')
        call = _call(model, torch.empty(setting.shape, device='meta'), replace(setting, dtype='fp32'))
        try:
            return count_flops(call)
        except RuntimeError:
            return None

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """Of the maps in eval mode, in float32."""
        if not step.is_comparable:
            return None
        images, training = self._images(setting), step.model.training
        with torch.no_grad():
            outputs, expected = step.model.eval()(images), reference(ARCHS[self.arch]).to(self.device)(images)
        step.model.train(training)
        return max_abs_diff(outputs, expected)

    def _build(self, candidate: Candidate) -> nn.Module:
        return build_backbone(candidate, ARCHS[self.arch], self.drop_path_rate)

    def _images(self, setting: Setting) -> Tensor:
        images = torch.randn(setting.shape, generator=torch.Generator().manual_seed(0))
        return images.to(self.device).contiguous(memory_format=self._format)


def _call(model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], None]:
    return (_train_step if setting.mode == 'train' else _forward)(model, images, setting)


def _forward(model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad(), setting.autocast(images.device.type):
            model(images)
    return run


def _train_step(model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], None]:
    gradients: list[Tensor] = []

    def run() -> None:
        model.zero_grad(set_to_none=True)
        with setting.autocast(images.device.type):
            maps = model(images)
        gradients[:] = gradients or [torch.randn_like(x) for x in maps]  # made once
        torch.autograd.backward(maps, gradients)
    return run
