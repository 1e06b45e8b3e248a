"""Template switches: what the request says, what the server defaults to, what the template sees.

Typed request fields and ``chat_template_kwargs`` are two spellings of the same options: values given
twice must agree.  A request's word beats a server default; what nobody says the template decides.

The one thing a reader would get wrong: None for one of the three standard options means unspecified,
while None for any other kwarg is the value none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ninfer.faults import Refused, invalid
from ninfer.prompt.conversation import Json, TemplateOptions
from ninfer.settings import GenerationDefaults

_STANDARD: dict[str, type] = {"enable_thinking": bool, "reasoning_effort": str, "preserve_thinking": bool}
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
        standard: dict[str, Json] = {name: getattr(self, name) for name in _STANDARD}
        return {**self.extra, **{name: value for name, value in standard.items() if value is not None}}


def resolve(asked: TemplateOptions, defaults: GenerationDefaults) -> Options:
    """Merge typed fields, kwargs and server defaults.  Raises ``Refused``."""
    for name in asked.kwargs:
        if name in RESERVED:
            message = f"{name} belongs to the server and cannot be set through chat_template_kwargs"
            raise _refusal(name, message, "reserved_template_option")
    thinking = _agreed("enable_thinking", asked.enable_thinking, asked.kwargs)
    effort = _agreed("reasoning_effort", asked.reasoning_effort, asked.kwargs)
    preserve = _agreed("preserve_thinking", asked.preserve_thinking, asked.kwargs)
    if effort is not None and (effort == "none" or not asked.effort_apart):
        if thinking is not None and thinking is (effort == "none"):
            message = f"enable_thinking {str(thinking).lower()} contradicts reasoning_effort {effort!r}"
            raise invalid(message, param="reasoning_effort", code="conflicting_template_option")
        thinking = effort != "none" if effort == "none" or defaults.enable_thinking is False else thinking
    return Options(
        enable_thinking=defaults.enable_thinking if thinking is None else thinking,
        reasoning_effort=None if effort == "none" else effort,
        preserve_thinking=defaults.preserve_thinking if preserve is None else preserve,
        extra={name: value for name, value in asked.kwargs.items() if name not in _STANDARD},
    )


def _agreed(name: str, typed: bool | str | None, kwargs: Mapping[str, Json]) -> Any:
    """Return the one value that the typed field and the kwarg agree on."""
    given = kwargs.get(name)
    if given is None:
        return typed
    if type(given) is not _STANDARD[name]:
        kind = "a boolean" if _STANDARD[name] is bool else "a string"
        raise _refusal(name, f"{name} must be {kind} or null", "invalid_template_option")
    if typed is not None and typed != given:
        message = f"{name} is given twice with different values"
        raise _refusal(name, message, "conflicting_template_option")
    return given


def _refusal(name: str, message: str, code: str) -> Refused:
    return invalid(message, param=f"chat_template_kwargs.{name}", code=code)
