"""Trains UperNet, Mask2Former and D-FINE of transformers on the pyramid for one step, on random images."""
import torch
import transformers as hf
from torch import nn

import cpvt_mm.timm  # noqa: F401  # registers the backbones in timm, where TimmBackbone finds them

# Use 'pyramid_cpvt_small' and True to start from the weights that the authors released.
NAME, PRETRAINED = 'pyramid_cpvt_nano', False


def backbone(*stages: int) -> hf.TimmBackboneConfig:
    return hf.TimmBackboneConfig(backbone=NAME, out_indices=list(stages), use_pretrained_backbone=PRETRAINED)


def models() -> dict[str, tuple[nn.Module, dict]]:
    """Returns small models with two classes, and labels for two images of 64 x 96."""
    label_map = torch.randint(2, (2, 64, 96))
    boxes = [dict(class_labels=torch.tensor([1]), boxes=torch.tensor([[.5, .5, .4, .6]])) for _ in range(2)]
    masks = dict(mask_labels=[(x == 1)[None].float() for x in label_map], class_labels=[torch.tensor([1])] * 2)
    channels = hf.AutoBackbone.from_config(backbone(1, 2, 3)).channels
    return {
        'UperNet': (hf.UperNetForSemanticSegmentation(hf.UperNetConfig(
            backbone_config=backbone(0, 1, 2, 3), num_labels=2, use_auxiliary_head=False)), dict(labels=label_map)),
        'Mask2Former': (hf.Mask2FormerForUniversalSegmentation(hf.Mask2FormerConfig(
            backbone_config=backbone(0, 1, 2, 3), num_labels=2, decoder_layers=2)), masks),
        'D-FINE': (hf.DFineForObjectDetection(hf.DFineConfig(
            backbone_config=backbone(1, 2, 3), encoder_in_channels=channels, num_labels=2, decoder_layers=2,
            num_queries=20)), dict(labels=boxes))}


if __name__ == '__main__':
    for name, (model, labels) in models().items():
        loss = model(torch.randn(2, 3, 64, 96), **labels).loss
        loss.backward()
        torch.optim.AdamW(model.parameters(), lr=1e-4).step()
        print(f'{name}: loss {loss.item():.2f}')
