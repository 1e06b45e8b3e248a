"""Template switches: what the request says, what the server defaults to, what the template sees.

A request's word beats a server default; what nobody says the template decides.

The one thing a reader would get wrong: nothing is checked here.  The two spellings of a switch have been
settled into one by ``protocols/options.py``, which also keeps the names in ``RESERVED`` out.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ninfer.prompt.conversation import Json, TemplateOptions
from ninfer.settings import GenerationDefaults

RESERVED = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}
    | {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}
    | {"additional_special_tokens", "raise_exception", "strftime_now", "namespace", "range", "dict"}
    | {"cycler", "joiner", "loop", "self", "caller", "varargs", "kwargs"}
)
"""Names that the server, the tokenizer or the template language gives to the template."""


@attrs.frozen
class Options:
    """The switches after every source has been heard; None: the template's own default."""

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    extra: Mapping[str, Json] = attrs.field(factory=dict)

    @property
    def variables(self) -> dict[str, Json]:
        """What the template sees: nothing of what is unspecified."""
        standard: dict[str, Json] = {
            "enable_thinking": self.enable_thinking,
            "reasoning_effort": self.reasoning_effort,
            "preserve_thinking": self.preserve_thinking,
        }
        return {**self.extra, **{name: value for name, value in standard.items() if value is not None}}


def resolve(asked: TemplateOptions, defaults: GenerationDefaults) -> Options:
    """Fill in the server's defaults where the request is silent."""
    preserve = asked.preserve_thinking
    return Options(
        enable_thinking=_thinking(asked, defaults.enable_thinking),
        reasoning_effort=None if asked.reasoning_effort == "none" else asked.reasoning_effort,
        preserve_thinking=defaults.preserve_thinking if preserve is None else preserve,
        extra=asked.kwargs,
    )


def _thinking(asked: TemplateOptions, default: bool | None) -> bool | None:
    if asked.reasoning_effort == "none":
        return False
    if asked.enable_thinking is not None:
        return asked.enable_thinking
    if default is False and asked.reasoning_effort is not None and not asked.effort_apart:
        return True  # a request that says how hard to think wants to think
    return default
