"""Uses the pyramid as an encoder for decoders of segmentation_models_pytorch (smp), with images of any size."""
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

import cpvt_mm.timm  # noqa: F401  # registers the backbones in timm, whose names smp finds with `tu-` before them

# Use 'tu-pyramid_cpvt_small' and encoder_weights='imagenet' to start from the weights that the authors released.
NAME, WEIGHTS = 'tu-pyramid_cpvt_nano', None


def segment(model: nn.Module, images: Tensor) -> Tensor:
    """Computes logits: `(B, C, H, W)` -> `(B, classes, H, W)`; pads images to a multiple of the last stride."""
    height, width = images.shape[2:]
    stride = model.encoder.output_stride
    return model(nn.functional.pad(images, (0, -width % stride, 0, -height % stride)))[..., :height, :width]


if __name__ == '__main__':
    for decoder in (smp.Unet, smp.FPN, smp.UPerNet, smp.Segformer):
        model = decoder(NAME, encoder_weights=WEIGHTS, classes=3).eval()
        print(f'{decoder.__name__}: {tuple(segment(model, torch.randn(1, 3, 65, 97)).shape)}')
