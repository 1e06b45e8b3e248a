"""A small byte-level tokenizer in the shape of the family's, and readers of the reference goldens."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ninfer.artifact import open_artifact
from ninfer.prompt.tokens import Vocabulary, byte_alphabet

SPLIT = (
    r"(?i:'(?:s|t|re|ve|m|ll|d))| ?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
WORDS = ("user", "assistant", "system", "hello", " world", "\n\n", "  ", "}}\n", "think", "ing")


def tokenizer_json() -> dict[str, Any]:
    """256 bytes, a few words with the merges that build them, and the special tokens."""
    stand_in = {byte: char for char, byte in byte_alphabet().items()}
    vocab = {stand_in[byte]: byte for byte in range(256)}
    merges: list[list[str]] = []
    for word in WORDS:
        built = ""
        for char in (stand_in[byte] for byte in word.encode()):
            if built and built + char not in vocab:
                merges.append([built, char])
                vocab[built + char] = len(vocab)
            built += char
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(len(vocab) + n, text) for n, text in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": False},
    }


def added(index: int, text: str) -> dict[str, Any]:
    """One entry of a list of added tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, "special": text in SPECIAL, **flags}


def config_json() -> dict[str, Any]:
    """Lists every special token again, and the others only here."""
    first = tokenizer_json()["added_tokens"][0]["id"]
    every = [added(first + n, text) for n, text in enumerate(SPECIAL + PLAIN)]
    return {
        "added_tokens_decoder": {str(item.pop("id")): item for item in every},
        "eos_token": "<|im_end|>",
        "pad_token": {"content": "<|endoftext|>"},
        "bos_token": None,
    }


@cache
def small_vocabulary() -> Vocabulary:
    """Build the small tokenizer's vocabulary."""
    return Vocabulary.load(json.dumps(tokenizer_json()).encode(), json.dumps(config_json()).encode())


FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MODELS = ("tiny-qwen3_5", "tiny-qwen3_5_moe")


@cache
def model_resource(model: str, role: str) -> bytes:
    """Read a frontend file of a bundled artifact."""
    with open_artifact(FIXTURES / f"{model}.ninfer") as artifact:
        return artifact.resource(role)


@cache
def vocabulary_of(model: str) -> Vocabulary:
    """Load the vocabulary of a bundled artifact."""
    roles = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    return Vocabulary.load(*(model_resource(model, role) for role in roles))


@cache
def golden_prompts(model: str) -> list[dict[str, Any]]:
    """Return a bundled artifact's golden prompts, with ``ids``, ``positions``, ``grid`` and ``answer``."""
    prompts: list[dict[str, Any]] = json.loads((FIXTURES / f"goldens-{model}.json").read_text())["prompts"]
    with np.load(FIXTURES / f"goldens-{model}.npz") as arrays:
        for n, prompt in enumerate(prompts):
            members = {
                "ids": "input_ids",
                "positions": "position_ids",
                "grid": "grid",
                "answer": "greedy_ids",
            }
            for name, array in members.items():
                key = f"{n:02d}.{array}"
                prompt[name] = arrays[key].tolist() if key in arrays else None
    return prompts


# A template of the family in small: it trims every turn, splits inline reasoning and knows no developer.
TEMPLATE = """
{%- macro show(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content -%}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif -%}
{%- endmacro -%}
{%- set seen = namespace(query=-1) -%}
{%- for message in messages -%}
{%- set text = show(message.content) | trim -%}
{%- set wrapped = text.startswith('<tool_response>') and text.endswith('</tool_response>') -%}
{%- if message.role == 'user' and not wrapped -%}
{%- set seen.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if seen.query < 0 %}{{ raise_exception('There is no <|im_start|>user query.') }}{% endif -%}
{%- if tools -%}<|im_start|>system
<tools>{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '\\n</tools>' }}
Write <tool_call> to call.<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- set text = show(message.content) | trim -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' ~ text ~ '\\n</tool_response><|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set thought = message.reasoning_content | default('', true) -%}
{%- if not thought and '</think>' in text -%}
{%- set thought = text.split('</think>')[0].replace('<think>', '').strip('\\n') -%}
{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{ '<|im_start|>assistant\\n' }}
{%- if preserve_thinking or loop.index0 > seen.query -%}
{{ '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}{%- endif -%}
{{ text }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
{%- for key, value in call.function.arguments.items() -%}
{{ '<parameter=' ~ key ~ '>\\n' ~ (value if value is string else value | tojson) ~ '\\n</parameter>\\n' }}
{%- endfor -%}
{{ '</function>\\n</tool_call>' }}{%- endfor -%}
{{ '<|im_end|>\\n' -}}
{%- elif message.role in ('user', 'system') -%}
{{ '<|im_start|>' ~ message.role ~ '\\n' ~ text ~ '<|im_end|>\\n' -}}
{%- else %}{{ raise_exception('Unknown role ' ~ message.role) }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n<think>\\n' }}
{%- if style is defined %}{{ style }}{% endif -%}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}
"""
