"""Measure transformers eager on a checkpoint, to compare with ``ninfer bench cpu`` on the same weights.

Needs torch and transformers, which the product does not.  Prints one JSON object: prefill and decode
tokens a second, medians over the repeats.  The one thing a reader would get wrong: the loop is a plain
greedy loop over the cache, without ``generate`` and its extra work, so the comparison favours torch.

    python scripts/bench_transformers.py CHECKPOINT --prompt-tokens 512 --decode-tokens 64 --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from transformers import AutoModelForImageTextToText


def measure(model: Any, prompt: int, decode: int) -> tuple[float, float]:
    """Prefill and decode tokens a second of one run."""
    ids = torch.randint(0, model.config.text_config.vocab_size - 32, (1, prompt))
    with torch.inference_mode():
        began = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        prefilled = time.perf_counter()
        for _ in range(decode):
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        ended = time.perf_counter()
    return prompt / (prefilled - began), decode / (ended - prefilled)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(
        args.checkpoint, dtype=getattr(torch, args.dtype)
    ).eval()
    measure(model, 16, 4)
    runs = [measure(model, args.prompt_tokens, args.decode_tokens) for _ in range(args.repeats)]
    prefill, decode = (statistics.median(column) for column in zip(*runs, strict=True))
    print(
        json.dumps(
            {
                **vars(args),
                "prefill_tokens_per_s": round(prefill, 1),
                "decode_tokens_per_s": round(decode, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
