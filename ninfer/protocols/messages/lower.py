"""A Messages request to a conversation and an ``Ask``, and how its answer is to be reported.

Counting and generating share ``lower_prompt``, so a count is the count of the prompt that would run.

The one thing a reader would get wrong: a final assistant turn is continued, not answered.  Its text
stands behind the reasoning, so such a request never thinks, also where thinking is the default.
"""

from __future__ import annotations

import attrs

from ninfer.prompt.conversation import CachePolicy, Conversation, Message, TemplateOptions, TextPart
from ninfer.protocols.fields import misfit
from ninfer.protocols.messages import schema
from ninfer.protocols.messages.caching import marked_places, system_blocks
from ninfer.protocols.messages.history import lower_history, refuse_odd_prefill
from ninfer.protocols.messages.schema import Output, Prompt
from ninfer.protocols.messages.tools import lower_tools
from ninfer.protocols.options import KWARGS, Spelled, settle_options
from ninfer.protocols.service import Ask, SamplingAsk

NAME_LIMIT = 128  # characters of a tool name
_SWITCH = {schema.Enabled: True, schema.Adaptive: True, schema.Disabled: False}


@attrs.frozen
class Report:
    """What the answer tells beside its content."""

    id: str
    model: str
    stream: bool = False


def lower_prompt(prompt: Prompt) -> tuple[Conversation, str]:
    """Lower what decides the prompt; also return the word for the tool choice.  Raises ``Refused``."""
    marked = marked_places(prompt)
    tools, choice = lower_tools(prompt, marked)
    prefill = prompt.messages[-1].role == "assistant"
    options = _options(prompt, prefill=prefill)
    if prefill:
        refuse_odd_prefill(prompt.messages)
    messages = (*_system(prompt, marked), *lower_history(prompt.messages, marked))
    return Conversation(messages, tools, options, CachePolicy(implicit=False), prefill), choice


def lower_request(prompt: Prompt, output: Output, report: Report, request_id: str) -> Ask:
    """Lower a request for an answer.  Raises ``Refused``."""
    conversation, choice = lower_prompt(prompt)
    return Ask(
        protocol="anthropic_messages",
        request_id=request_id,
        stream=report.stream,
        conversation=conversation,
        model=report.model,
        max_tokens=output.max_tokens,
        stop=output.stop_sequences or (),
        sampling=SamplingAsk(temperature=output.temperature, top_p=output.top_p, top_k=output.top_k),
        thinking_budget=_budget(prompt, output),
        tool_name_limit=NAME_LIMIT,
        response_id=report.id,
        tool_choice=choice,
    )


def _system(prompt: Prompt, marked: frozenset[str]) -> tuple[Message, ...]:
    parts = [TextPart(block.text, path in marked) for path, block in system_blocks(prompt)]
    return (Message("system", tuple(parts)),) if parts else ()


def _options(prompt: Prompt, *, prefill: bool) -> TemplateOptions:
    spelled = Spelled(
        enable_thinking=_SWITCH.get(type(prompt.thinking)),
        reasoning_effort=prompt.output_config.effort if prompt.output_config else None,
        preserve_thinking=prompt.preserve_thinking,
        thinking_path="thinking.type",
        effort_path="output_config.effort",
        effort_apart=True,
    )
    options = settle_options(spelled, prompt.chat_template_kwargs)
    if prefill and options.enable_thinking:
        path = "thinking.type" if prompt.thinking else f"{KWARGS}.enable_thinking"
        complaint = "may not switch thinking on when a final assistant message is continued"
        raise misfit(path, complaint, "invalid_prefill")
    return attrs.evolve(options, enable_thinking=False) if prefill else options


def _budget(prompt: Prompt, output: Output) -> int | None:
    if not isinstance(prompt.thinking, schema.Enabled):
        return None
    budget = prompt.thinking.budget_tokens
    if output.max_tokens is not None and budget >= output.max_tokens:
        raise misfit("thinking.budget_tokens", "must be less than max_tokens")
    return budget
