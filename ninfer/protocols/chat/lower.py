"""A Chat request to an ``Ask``, and how its answer is to be reported.

The one thing a reader would get wrong: when both output limits are given, the newer
``max_completion_tokens`` counts, and faults about capacity name the one that counts.
"""

from __future__ import annotations

import attrs

from ninfer.prompt.conversation import CachePolicy, Conversation
from ninfer.protocols.chat.history import lower_messages
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.chat.tools import lower_tools
from ninfer.protocols.fields import ReadJson
from ninfer.protocols.options import Spelled, settle_options
from ninfer.protocols.service import Ask, SamplingAsk


@attrs.frozen
class Report:
    """What the answer tells beside its text.  ``created`` is in Unix seconds."""

    id: str
    created: int
    model: str
    stream: bool = False
    include_usage: bool = False
    timings_per_token: bool = False


def lower_chat(request: ChatRequest, report: Report, request_id: str, read_json: ReadJson) -> Ask:
    """Lower a request.  Raises ``Refused``."""
    tools, choice = lower_tools(request)
    limit, limit_param = request.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, limit_param = request.max_tokens, "max_tokens"
    return Ask(
        protocol="openai_chat_completions",
        request_id=request_id,
        stream=report.stream,
        conversation=attrs.evolve(_conversation(request, read_json), tools=tools),
        model=report.model,
        max_tokens=limit,
        max_tokens_param=limit_param,
        stop=(request.stop,) if isinstance(request.stop, str) else request.stop or (),
        sampling=_sampling(request),
        response_id=report.id,
        tool_choice=choice,
        progress=report.stream and bool(request.return_progress),
    )


def _conversation(request: ChatRequest, read_json: ReadJson) -> Conversation:
    messages = tuple(lower_messages(request.messages, read_json))
    hints = request.prompt_cache_options
    cache = CachePolicy(implicit=hints is None or hints.mode != "explicit")
    spelled = Spelled(request.enable_thinking, request.reasoning_effort, request.preserve_thinking)
    options = settle_options(spelled, request.chat_template_kwargs)
    return Conversation(messages, options=options, cache=cache)


def _sampling(request: ChatRequest) -> SamplingAsk:
    return SamplingAsk(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence=request.presence_penalty,
        frequency=request.frequency_penalty,
        seed=request.seed,
    )


def report_of(request: ChatRequest, id: str, created: int, model: str) -> Report:
    """Read from a request how its answer is to be reported."""
    stream = bool(request.stream)
    options = request.stream_options
    return Report(
        id=id,
        created=created,
        model=model,
        stream=stream,
        include_usage=bool(options and options.include_usage),
        timings_per_token=stream and bool(request.timings_per_token),
    )
