"""Template switches as requests spell them, settled into one ``TemplateOptions``.

Owns the merge of typed fields with ``chat_template_kwargs`` for every protocol.  Promises that two
spellings of one switch agree or the request is refused (``conflicting_template_option``), and that
what the server decides itself (messages, tools, generation mode, special tokens) cannot be reached
through ``chat_template_kwargs``.

The one thing a reader would get wrong: effort ``none`` is kept beside ``enable_thinking=False``, for
the request log; it says "do not think", and no template needs to know the word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar, get_args

import attrs

from ninfer.faults import Refused
from ninfer.prompt.conversation import Json, TemplateOptions
from ninfer.prompt.options import RESERVED
from ninfer.protocols.fields import misfit

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
T = TypeVar("T", bool, str)

KWARGS = "chat_template_kwargs"


@attrs.frozen
class Spelled:
    """The switches as typed request fields, and the wire path of each for faults.

    ``effort_apart`` says that an effort (other than none) does not speak about whether to think.
    """

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    thinking_path: str = "enable_thinking"
    effort_path: str = "reasoning_effort"
    preserve_path: str = "preserve_thinking"
    effort_apart: bool = False


def settle_options(spelled: Spelled, kwargs: Mapping[str, Json] | None) -> TemplateOptions:
    """Merge typed fields and ``chat_template_kwargs``.  Raises ``Refused``."""
    rest = dict(kwargs or {})
    thinking = _agree(spelled.enable_thinking, spelled.thinking_path, _switch(rest, "enable_thinking"))
    effort = _agree(spelled.reasoning_effort, spelled.effort_path, _effort(rest))
    preserve = _agree(spelled.preserve_thinking, spelled.preserve_path, _switch(rest, "preserve_thinking"))
    for name in rest:
        if name in RESERVED:
            complaint = "belongs to the server and cannot be set"
            raise misfit(f"{KWARGS}.{name}", complaint, "reserved_template_option")
    speaks = effort is not None and (effort == "none" or not spelled.effort_apart)
    if speaks and thinking is not None and thinking is (effort == "none"):
        raise _conflict(spelled.effort_path, spelled.thinking_path)
    if effort == "none":
        thinking = False
    return TemplateOptions(thinking, effort, preserve, rest, spelled.effort_apart)


def _switch(kwargs: dict[str, Json], name: str) -> bool | None:
    value = kwargs.pop(name, None)
    if value is None or type(value) is bool:
        return value
    raise misfit(f"{KWARGS}.{name}", "must be a boolean", "invalid_type")


def _effort(kwargs: dict[str, Json]) -> str | None:
    value = kwargs.pop("reasoning_effort", None)
    if value is None:
        return None
    if type(value) is not str:
        raise misfit(f"{KWARGS}.reasoning_effort", "must be a string", "invalid_type")
    if value not in get_args(Effort):
        choices = ", ".join(f'"{choice}"' for choice in get_args(Effort))
        raise misfit(f"{KWARGS}.reasoning_effort", f"must be one of {choices}")
    return value


def _agree(typed: T | None, path: str, other: T | None) -> T | None:
    if typed is None or other is None:
        return other if typed is None else typed
    if typed != other:
        raise _conflict(path, KWARGS)
    return typed


def _conflict(path: str, other: str) -> Refused:
    return misfit(path, f"contradicts {other}", "conflicting_template_option")
