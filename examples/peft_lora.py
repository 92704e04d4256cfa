"""Fine-tunes a backbone with LoRA (peft): trains adapters of q, kv and proj, and merges them into the weights."""
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from cpvt_mm import create_backbone

# Use 'pyramid-cpvt-small' and True to start from the weights that the authors released.
NAME, PRETRAINED = 'pyramid-cpvt-nano', False
# An expression, because the list ['q', 'kv', 'proj'] would also match patch_embed.proj, a convolution.
LORA = LoraConfig(r=4, target_modules=r'.*attn\.(q|kv|proj)')

if __name__ == '__main__':
    model = get_peft_model(create_backbone(NAME, pretrained=PRETRAINED), LORA)
    model.print_trainable_parameters()

    head = nn.Linear(model.feature_info.channels()[-1], 2)  # the head of your task; here two classes
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-2)
    images, classes = torch.randn(2, 3, 70, 90), torch.tensor([0, 1])
    for _ in range(5):
        *_, last = model(images)
        loss = nn.functional.cross_entropy(head(last.mean((2, 3))), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f'loss {loss:.3f}')
    learnt = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    print(f'{sum("lora_" in name for name in learnt)} of {len(learnt)} tensors with a gradient belong to adapters')

    model.eval()
    with torch.no_grad():
        adapted = model(images)
        backbone = model.merge_and_unload()  # a PyramidCPVT without adapters
        merged = backbone(images)
    difference = max((a - b).abs().max() for a, b in zip(adapted, merged, strict=True))
    print(f'largest difference after merging: {difference:.1e}')
