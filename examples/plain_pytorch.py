"""Trains a classifier of vertical and horizontal stripes in plain PyTorch, without configs, on images of any size."""
import torch
from torch import Tensor, nn

from cpvt_mm import create_backbone

# Use 'pyramid-cpvt-small' and True to start from the weights that the authors released.
NAME, PRETRAINED = 'pyramid-cpvt-nano', False


class Classifier(nn.Module):

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.backbone = create_backbone(NAME, pretrained=PRETRAINED)
        self.head = nn.Linear(self.backbone.feature_info.channels()[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits: `(B, 3, H, W)` -> `(B, num_classes)`."""
        *_, last = self.backbone(images)  # four maps, at strides 4, 8, 16 and 32
        return self.head(last.mean((2, 3)))


def stripes(height: int, width: int) -> Tensor:
    """Draws two noisy images `(2, 3, height, width)`: vertical and horizontal stripes of 4 pixels."""
    upright = (torch.arange(width) // 4 % 2).expand(3, height, width)
    flat = (torch.arange(height) // 4 % 2)[:, None].expand(3, height, width)
    return torch.stack([upright, flat]) + torch.randn(2, 3, height, width)


if __name__ == '__main__':
    model = Classifier(num_classes=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        height, width = torch.randint(33, 97, (2,)).tolist()
        loss = nn.functional.cross_entropy(model(stripes(height, width)), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f'{height} x {width}: loss {loss:.3f}')
