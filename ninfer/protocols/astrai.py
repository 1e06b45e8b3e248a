"""The astrai dialect: every difference from the native wire, and nothing else.

============================  ===========================================================
requests                      any model label is accepted and echoed ("astrai" when absent);
                              ``n``, ``presence_penalty``, ``logit_bias`` and ``user`` are
                              checked, then ignored with a warning; ``top_k`` is 50 when absent
                              and may be any positive number; ``max_tokens`` is 2048 when absent
                              (Chat) or 1024 (Messages)
error replies                 422 with a list of places for a malformed request; otherwise the
                              native status with one line of text; both under ``detail``
Chat stream                   the bare usage object as its own data line before ``[DONE]``
Messages stream               ``[DONE]`` after ``message_stop``
/health                       ``model_loaded``
============================  ===========================================================

The one thing a reader would get wrong: the sampler keeps at most 20 candidates, so every larger
``top_k`` is lowered to 20 here; asking for 50 changes nothing that could be observed.
"""

from __future__ import annotations

from typing import Annotated

import attrs

from ninfer.faults import Fault
from ninfer.http.exchange import Reply
from ninfer.protocols.dialect import Dialect, Endpoint, Warn
from ninfer.protocols.fields import Length, Range, Reader, split
from ninfer.protocols.frames import DONE, encode, frame
from ninfer.protocols.service import Finished, ModelCard
from ninfer.protocols.status import code_of
from ninfer.settings import JsonBudget

MODEL = "astrai"
MAX_TOKENS: dict[Endpoint, int] = {"chat": 2048, "messages": 1024}
TOP_K = 50
CANDIDATES = 20  # the most that the sampler keeps


@attrs.frozen
class Extras:
    """Fields that this dialect reads otherwise than the native one; the rest is left alone."""

    n: Annotated[int, Range(1)] | None = None
    presence_penalty: Annotated[float, Range(-2, 2)] | None = None
    logit_bias: dict[Annotated[str, Length(1)], float] | None = None
    user: str | None = None
    top_k: Annotated[int, Range(1)] | None = None
    max_tokens: Annotated[int, Range(1)] | None = None


_IGNORED: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "user": (None,),
}


def astrai(warn: Warn) -> Dialect:
    """Build the dialect; ``warn`` hears of fields that a request set and that are ignored."""
    reader = Reader(JsonBudget())  # Extras holds no free JSON, so the budget decides nothing

    def adapt(endpoint: Endpoint, body: object) -> object:
        if type(body) is not dict:
            return body
        extras = reader.read(body, Extras)
        ignored = _IGNORED if endpoint == "chat" else {}
        for name, neutral in ignored.items():
            if body.get(name) not in neutral:
                warn(f"the request field {name} is ignored in the {MODEL} dialect")
        kept = {name: value for name, value in body.items() if name not in ignored}
        kept["model"] = MODEL if kept.get("model") is None else kept["model"]
        kept["top_k"] = min(extras.top_k or TOP_K, CANDIDATES)
        if body.get("max_completion_tokens") is None:
            kept["max_tokens"] = extras.max_tokens or MAX_TOKENS[endpoint]
        return kept

    return Dialect(
        name=MODEL,
        adapt=adapt,
        label=_any_label,
        malformed=_malformed,
        failed=_failed,
        before_done=_usage_line,
        after_stop=(DONE,),
        render_fault=_render_fault,
        health_extra={"model_loaded": True},
    )


def _any_label(label: str, card: ModelCard) -> str:
    return label


def _malformed(fault: Fault, reply: Reply) -> Reply:
    """Answer like a validating framework: 422 and the place of the fault."""
    detail = {"type": code_of(fault), "loc": ["body", *split(fault.param or "")], "msg": fault.message}
    return attrs.evolve(reply, status=422, body=encode({"detail": [detail]}))


def _failed(fault: Fault, reply: Reply) -> Reply:
    return attrs.evolve(reply, body=encode({"detail": fault.message}))


def _render_fault(path: str, status: int, fault: Fault, request_id: str) -> bytes:
    return encode({"detail": fault.message})


def _usage_line(done: Finished) -> tuple[bytes, ...]:
    total = done.prompt_tokens + done.completion_tokens
    counts = {"prompt_tokens": done.prompt_tokens, "completion_tokens": done.completion_tokens}
    return (frame({**counts, "total_tokens": total}),)
