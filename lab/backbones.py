"""Measures backbones without necks and heads: the conditions, and a model with the measured call."""
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.utils.benchmark import timer

from cpvt_mm.archs import PYRAMID_ARCHS, PyramidArch
from cpvt_mm.models.pyramid_cpvt import PyramidCPVT
from cpvt_mm.tokens.grid import Size
from cpvt_mm.zoo.renaming import Format

from .candidates import PEERS, Candidate, build_backbone, in_groups
from .counting import Work, count_calls, count_flops, count_work

DTYPES = {'fp32': torch.float32, 'tf32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}


@contextmanager
def allow_tf32(is_allowed: bool) -> Iterator[None]:
    """Allows or forbids a GPU to compute float32 products and convolutions in TF32, with mantissas of 10 bits."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision('high' if is_allowed else 'highest')
    torch.backends.cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


@dataclass(frozen=True)
class Setting:
    """The conditions of one group. Its candidates are timed in turns, so that disturbances affect all alike.

    The mode is 'forward', in eval mode without gradients, or 'train'. Weights are always float32: the dtype tf32 lets a
    GPU round factors, bf16 and fp16 use autocast. Images of several `sizes` are padded to `height` and `width`.
    """
    mode: str
    height: int
    width: int
    batch_size: int
    dtype: str
    threads: int
    sizes: tuple[Size, ...] = ()  # height and width of each image without padding; empty: all fill the batch

    def __str__(self) -> str:
        images = self.names_of_sizes or f'{self.batch_size} x {self.height} x {self.width}'
        return f'{self.mode}, {images}, {self.dtype}, {self.threads} thread{"s" if self.threads > 1 else ""}'

    @property
    def names_of_sizes(self) -> str:
        """Several sizes, as in '800x1216+480x640'; empty if there are none."""
        return '+'.join(f'{height}x{width}' for height, width in self.sizes)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch_size, 3, self.height, self.width

    def autocast(self, device: str) -> AbstractContextManager[None]:
        """Returns the context of a forward pass: autocast for bf16 and fp16."""
        return nullcontext() if DTYPES[self.dtype] == torch.float32 else torch.autocast(device, DTYPES[self.dtype])


@dataclass(frozen=True)
class Step:
    """A repeatable forward pass or training step of a model.

    `format` is None if its maps cannot be compared with the maps of PyramidCPVT.
    """
    model: nn.Module
    run: Callable[[], object]
    format: Format | None = None  # of the model's weights

    def held_bytes(self) -> int:
        """Returns the bytes of weights and buffers, which stay between two calls; not of gradients."""
        storages = [tensor.untyped_storage() for tensor in chain(self.model.parameters(), self.model.buffers())]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def seconds(call: Callable[[], object]) -> float:
    """Times one call in seconds, with its work on an accelerator; torch's `Timer` makes two more calls each time."""
    start = timer()
    call()
    return timer() - start


@dataclass(frozen=True)
class Backbones:
    """Runs a forward pass, or a forward and backward pass with random gradients of the four maps.

    Images are padded to the largest one. Backbones with `padding='exact'` are told the sizes without padding.

    All candidates have the size of `arch` and the stochastic depth `drop_path_rate`.
    """
    arch: str
    drop_path_rate: float = 0.2
    device: str = 'cpu'

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        """Builds a candidate on the device, compiled at its first call if it has `shapes`."""
        arch, fmt = PYRAMID_ARCHS[self.arch], PEERS[candidate.name].format
        model = build_backbone(candidate, arch, self.drop_path_rate)
        # Comparing in another mode or dtype would compile the model a second time.
        if candidate.shapes and (setting.mode, setting.dtype) != ('forward', 'fp32'):
            fmt = None
        if fmt:
            prepare_comparison(model, fmt, arch)
        model.to(self.device).train(setting.mode == 'train')
        if candidate.shapes:
            model.compile(dynamic=candidate.shapes == 'dynamic')
        return Step(model, _call(model, self._images(setting), setting), fmt)

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        """Counts operations of a call without stochastic depth, compilation and activation checkpointing; None for a
        model whose forward pass depends on data.
        """
        plain = {key: value for key, value in candidate.arguments.items() if key != 'with_cp'}
        call = replace(self, drop_path_rate=0.)._call_on_meta(Candidate(candidate.name, plain), setting, torch.float32)
        try:
            return count_flops(call)
        except RuntimeError:
            return None

    def count(self, candidate: Candidate, setting: Setting) -> tuple[Work, Work]:
        """Counts a call with fused and with plain attention; weights and images have the setting's dtype.

        Python's calls are counted for one image of 64 x 64 pixels, or of the several sizes, on the CPU.
        """
        call = self._call_on_meta(candidate, setting, DTYPES[setting.dtype])
        call()  # makes the gradients of the outputs

        def work(fused: bool) -> Work:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return count_work(call, fused)

        small = setting if setting.sizes else replace(setting, height=64, width=64, batch_size=1)
        on_cpu = Backbones(self.arch, self.drop_path_rate).step(candidate, replace(small, dtype='fp32')).run
        on_cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            python = count_calls(on_cpu)
        return work(True)._replace(python=python), work(False)

    def _call_on_meta(self, candidate: Candidate, setting: Setting, dtype: torch.dtype) -> Callable[[], None]:
        # The meta device needs no time and no memory, and no fused kernel is counted wrongly.
        model = build_backbone(candidate, PYRAMID_ARCHS[self.arch], self.drop_path_rate).to('meta', dtype)
        model.train(setting.mode == 'train')
        images = torch.empty(setting.shape, device='meta', dtype=dtype)
        return _call(model, images, replace(setting, dtype='fp32'))

    def max_abs_diff(self, step: Step, setting: Setting) -> float | None:
        """Returns the largest difference to the maps of a PyramidCPVT with the same weights, in eval mode and float32.

        It is None if PyramidCPVT cannot have these weights. A backbone that is told the sizes of the images is compared
        with a pass for each size.
        """
        pyramid = step.format and with_weights_of(step.model, step.format, PYRAMID_ARCHS[self.arch])
        if not pyramid:
            return None
        inputs, training = _inputs(step.model, self._images(setting), setting), step.model.training
        with torch.no_grad(), allow_tf32(False):
            pyramid.to(self.device)
            outputs = step.model.eval()(*inputs)
            expected = pyramid(*inputs) if len(inputs) == 1 else in_groups(pyramid, *inputs)
        step.model.train(training)
        if [x.shape for x in outputs] != [x.shape for x in expected]:
            return None
        return max(float((x - y).abs().max()) for x, y in zip(outputs, expected, strict=True))

    def _images(self, setting: Setting) -> Tensor:
        return torch.randn(setting.shape, generator=torch.Generator().manual_seed(0)).to(self.device)


def _inputs(model: nn.Module, images: Tensor, setting: Setting) -> tuple[Tensor] | tuple[Tensor, tuple[Size, ...]]:
    if getattr(model, 'padding', None) != 'exact':
        return (images,)
    return images, setting.sizes or ((setting.height, setting.width),) * setting.batch_size


def _call(model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], None]:
    inputs, gradients, is_training = _inputs(model, images, setting), list[Tensor](), setting.mode == 'train'

    def run() -> None:
        if is_training:
            model.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(is_training), setting.autocast(images.device.type):
            maps = model(*inputs)
        if is_training:
            gradients[:] = gradients or [torch.randn_like(x) for x in maps]  # made once
            torch.autograd.backward(maps, gradients)

    return run


def prepare_comparison(model: nn.Module, fmt: Format, arch: PyramidArch) -> None:
    """Changes a backbone in place, so that a comparison with PyramidCPVT notices a difference of each parameter.

    Adds noise to all parameters, some of which start as 0 or 1, and gives the norms the eps of PyramidCPVT.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    with torch.device('meta'):
        norms = {name: module for name, module in PyramidCPVT(asdict(arch)).named_modules()
                 if isinstance(module, nn.LayerNorm)}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            norm_name, _, _ = fmt.translate_name(f'{name}.weight')[0].rpartition('.')
            if norm_name in norms:  # the model may have a norm at its end, which is not used
                module.eps = norms[norm_name].eps


def with_weights_of(model: nn.Module, fmt: Format, arch: PyramidArch) -> PyramidCPVT | None:
    """Returns a PyramidCPVT in eval mode, on the CPU, with the weights of a model; None if they do not fit it."""
    weights = fmt.translate({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    pyramid = PyramidCPVT(asdict(arch)).eval()
    needed = pyramid.state_dict()
    if any(name not in weights or weights[name].shape != tensor.shape for name, tensor in needed.items()):
        return None
    pyramid.load_state_dict({name: weights[name] for name in needed})
    return pyramid
