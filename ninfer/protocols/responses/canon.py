"""Items as they are stored and listed: one spelling for each, every one with an id.

Promises that an item means the same before and after, and that ids that were given are kept.

The one thing a reader would get wrong: strings become one part here, so a listed item may hold an array
where the client sent a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ninfer.prompt.conversation import Json
from ninfer.protocols.fields import misfit
from ninfer.protocols.frames import Mint, identifier
from ninfer.protocols.responses import items
from ninfer.protocols.responses.store import JsonItem

_PREFIX: dict[type, str] = {
    items.Message: "msg_",
    items.Reasoning: "rs_",
    items.FunctionCall: "fc_",
    items.FunctionCallOutput: "fco_",
}


def input_items(given: str | tuple[items.Item, ...] | None) -> tuple[items.Item, ...]:
    """Return the items of an input; text is one user message, nothing is none."""
    if isinstance(given, str):
        return (items.Message("user", (items.InputText("input_text", given),)),) if given else ()
    return given or ()


def canonical(given: Sequence[items.Item], known: Iterable[str], mint: Mint) -> tuple[JsonItem, ...]:
    """Spell items, with fresh ids where there are none.  ``known`` are ids of the history before.

    Raises ``Refused`` for an id that is there twice.
    """
    seen = set(known)
    spelled = []
    for index, item in enumerate(given):
        if isinstance(item, items.Hosted):
            continue  # refused while it was read
        id = item.id or identifier(_PREFIX[type(item)], mint)
        if id in seen:
            raise misfit(f"input[{index}].id", "is the id of an earlier item", "duplicate_item_id")
        seen.add(id)
        spelled.append(_spelled(item, id))
    return tuple(spelled)


def _spelled(
    item: items.Message | items.Reasoning | items.FunctionCall | items.FunctionCallOutput, id: str
) -> JsonItem:
    head: JsonItem = {"id": id, "type": item.type}
    match item:
        case items.Message():
            return {**head, "status": item.status or "completed", "role": item.role, **_message(item)}
        case items.Reasoning():
            return {**head, **_reasoning(item)}
        case items.FunctionCall():
            namespace = {} if item.namespace is None else {"namespace": item.namespace}
            called: JsonItem = {"call_id": item.call_id, **namespace, "name": item.name}
            return {**head, "status": "completed", **called, "arguments": item.arguments}
        case items.FunctionCallOutput():
            output = item.output if isinstance(item.output, str) else _parts(item.output)
            answered: JsonItem = {"call_id": item.call_id, **_asserted(item), "output": output}
            return {**head, "status": "completed", **answered}


def _message(item: items.Message) -> JsonItem:
    phase: JsonItem = {} if item.phase is None else {"phase": item.phase}
    if not isinstance(item.content, str):
        return {"content": _parts(item.content), **phase}
    text: items.Part
    if item.role == "assistant":
        text = items.OutputText("output_text", item.content)
    else:
        text = items.InputText("input_text", item.content)
    return {"content": [_part(text)] if item.content else [], **phase}


def _reasoning(item: items.Reasoning) -> JsonItem:
    content: list[Json] = [{"type": "reasoning_text", "text": part.text} for part in item.content or ()]
    sealed: JsonItem = {}
    if item.encrypted_content is not None:
        sealed["encrypted_content"] = item.encrypted_content
    summary: list[Json] = [dict(part) for part in item.summary or ()]
    return {"summary": summary, "content": content, **sealed, "status": item.status or "completed"}


def _asserted(item: items.FunctionCallOutput) -> JsonItem:
    given = {"namespace": item.namespace, "name": item.name}
    return {name: value for name, value in given.items() if value is not None}


def _parts(parts: Iterable[items.Part]) -> list[Json]:
    return [_part(part) for part in parts]


def _part(part: items.Part) -> JsonItem:
    spelled: JsonItem = {"type": part.type}
    match part:
        case items.InputText():
            spelled["text"] = part.text
        case items.OutputText():
            spelled |= {"text": part.text, "annotations": []}
        case items.Refusal():
            spelled["refusal"] = part.refusal
        case items.InputImage():
            spelled |= {"detail": part.detail or "auto", "image_url": part.image_url}
        case items.InputVideo():
            spelled["video_url"] = part.video_url
        case items.InputFile() | items.InputAudio():
            return spelled  # refused while it was read
    if part.prompt_cache_breakpoint is not None:
        spelled["prompt_cache_breakpoint"] = {"mode": part.prompt_cache_breakpoint.mode}
    return spelled
