"""mHC in a trained Llama, in PyTorch: attach, train on, save, load.

Run it: `pip install 'transformers>=5.23'`, then `python docs/examples/attach.py`: half a minute.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fathom.torch import attach, reattach

LENGTH, BATCH, STEPS = 64, 8, 40


def train(model: nn.Module, data: torch.Tensor) -> None:
    """Print the loss of the first and last step, in nats per byte."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1))
        ids = data[starts + torch.arange(LENGTH)]
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, STEPS - 1):
            print(f"step {step + 1}: loss {loss.item():.4f}")


def main() -> None:
    """Train a small Llama on this file, with a connection from the second half on."""
    data = torch.tensor(list(Path(__file__).read_bytes()))
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)  # or from_pretrained
    train(model, data)

    before = model(data[None, :LENGTH]).logits
    attach(model, "mhc_cycle", start="plain")
    after = model(data[None, :LENGTH]).logits
    print(f"attached: logits differ by {(after - before).abs().max():.0e}")
    train(model, data)

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = LlamaForCausalLM.from_pretrained(folder)  # it reports names `connection.*`
        reattach(again, folder)
    prompt = data[None, :32]
    written = [m.generate(prompt, max_new_tokens=20, do_sample=False) for m in (model, again)]
    print("the loaded model writes the same:", torch.equal(*written))


if __name__ == "__main__":
    main()
