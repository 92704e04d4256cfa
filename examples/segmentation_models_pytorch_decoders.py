"""Uses the pyramid as an encoder for decoders of segmentation_models_pytorch (smp), with images of any size."""
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

from cpvt_mm import create_backbone

# Use 'pyramid-cpvt-small' and True to start from the weights that the authors released.
NAME, PRETRAINED = 'pyramid-cpvt-nano', False


class PyramidEncoder(nn.Module):

    def __init__(self, depth: int, output_stride: int) -> None:
        super().__init__()
        self.depth, self.output_stride = depth, min(output_stride, 2**depth)

    def set_in_channels(self, in_channels: int, pretrained: bool) -> None:
        """Builds the pyramid; smp calls it once. smp's `pretrained` is for weights that smp downloads."""
        stages = tuple(range(self.depth - 1))
        self.backbone = create_backbone(NAME, pretrained=PRETRAINED, in_channels=in_channels, out_indices=stages)
        self.out_channels = [in_channels, 0, *self.backbone.feature_info.channels()]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Returns maps at strides 1 to 32 of `(B, C, H, W)`. The pyramid lacks stride 2: that map has no channels."""
        return [images, images[:, :0, ::2, ::2], *self.backbone(images)]


def segment(model: nn.Module, images: Tensor) -> Tensor:
    """Computes logits: `(B, C, H, W)` -> `(B, classes, H, W)`; pads images if the decoder needs it."""
    height, width = images.shape[2:]
    stride = model.encoder.output_stride if model.requires_divisible_input_shape else 1
    return model(nn.functional.pad(images, (0, -width % stride, 0, -height % stride)))[..., :height, :width]


smp.encoders.encoders[NAME] = dict(encoder=PyramidEncoder, params={})
if __name__ == '__main__':
    for decoder in (smp.Unet, smp.FPN, smp.UPerNet, smp.Segformer):
        model = decoder(NAME, encoder_weights=None, classes=3).eval()
        print(f'{decoder.__name__}: {tuple(segment(model, torch.randn(1, 3, 65, 97)).shape)}')
