"""A Responses request, with what is stored of its conversation, to an ``Ask`` and the plan of its answer.

Promises the same prompt for Create and for the token count, and that a stored history is read by the very
rules that read a new one.

The one thing a reader would get wrong: instructions are a turn of this request only; they are never part
of what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ninfer.prompt.conversation import CachePolicy, Conversation, Message, TemplateOptions, TextPart
from ninfer.protocols.dialect import Kit
from ninfer.protocols.fields import misfit
from ninfer.protocols.frames import identifier
from ninfer.protocols.options import Spelled, settle_options
from ninfer.protocols.responses.canon import canonical, input_items
from ninfer.protocols.responses.history import PARENT, Placed, lower_history
from ninfer.protocols.responses.items import Item
from ninfer.protocols.responses.objects import Envelope, envelope
from ninfer.protocols.responses.schema import CreateRequest
from ninfer.protocols.responses.store import OVERHEAD, JsonItem, Link, Stored, footprint
from ninfer.protocols.responses.tools import Names, ToolSet, lower_tools
from ninfer.protocols.service import Ask, SamplingAsk


@attrs.frozen
class Plan:
    """One generation, how its answer begins, and what storing it needs; sizes are bytes in memory."""

    ask: Ask
    begun: Envelope
    names: Names
    input: tuple[JsonItem, ...]
    parent: Link | None
    session: str
    preserve: bool | None
    store: bool
    input_size: int
    begun_size: int

    @property
    def least(self) -> int:
        """What storing will cost whatever the answer is."""
        return self.input_size + self.begun_size + (self.parent.total if self.parent else 0)

    def stored(self, response: Envelope) -> Stored:
        """Return the terminal response as it is stored."""
        output = response["output"]
        assert isinstance(output, list)
        link = Link(self.parent, self.input, tuple(output), self.input_size + footprint(output))
        return Stored(self.ask.response_id, response, link, self.session, self.preserve, self.begun_size)


def lower_create(
    request: CreateRequest, parent: Stored | None, model: str, request_id: str, kit: Kit
) -> Plan:
    """Lower a request.  Raises ``Refused``."""
    id, store = identifier("resp_", kit.mint), request.store is not False
    tools = lower_tools(request)
    spelled, conversation = _conversation(request, parent, tools, kit)
    asked = conversation.options.preserve_thinking
    inherited = parent.preserve if parent else kit.preserve_thinking
    session = parent.session if parent else id
    ask = Ask(
        protocol="openai_responses",
        request_id=request_id,
        stream=bool(request.stream),
        conversation=conversation,
        model=model,
        max_tokens=request.max_output_tokens,
        max_tokens_param="max_output_tokens",
        sampling=SamplingAsk(temperature=request.temperature, top_p=request.top_p),
        tool_name_limit=tools.name_limit,
        session=session if parent or store else None,
        session_write=store,
        response_id=id,
        tool_choice=tools.choice,
        semantic_change=parent is not None and asked is not None and asked != inherited,
    )
    begun = envelope(request, id, int(kit.now()), model, conversation.options.reasoning_effort)
    return Plan(
        ask=ask,
        begun=begun,
        names=tools.names,
        input=spelled,
        parent=parent.link if parent else None,
        session=session,
        preserve=inherited if asked is None else asked,
        store=store,
        input_size=OVERHEAD + footprint(spelled),
        begun_size=OVERHEAD + footprint(begun),
    )


def lower_count(request: CreateRequest, parent: Stored | None, kit: Kit) -> Conversation:
    """Lower a request to the conversation alone.  Raises ``Refused``."""
    return _conversation(request, parent, lower_tools(request), kit)[1]


def _conversation(
    request: CreateRequest, parent: Stored | None, tools: ToolSet, kit: Kit
) -> tuple[tuple[JsonItem, ...], Conversation]:
    """Return the new items as they are stored, and the whole conversation."""
    links = parent.link.line() if parent else []
    new = input_items(request.input)
    known = (str(item["id"]) for link in links for item in (*link.input, *link.output))
    spelled = canonical(new, known, kit.mint)
    history = [placed for link in links for placed in _read(link, kit)]
    history += [Placed(item, f"input[{index}]") for index, item in enumerate(new)]
    turns = lower_history(history, tools.names, kit.read_json)
    if not new and not any(turn.role == "user" for turn in turns):
        complaint = "is required where no user message precedes it"
        raise misfit("input", complaint, "missing_required_parameter")
    if request.instructions:
        turns.insert(0, Message("developer", (TextPart(request.instructions),)))
    hints = request.prompt_cache_options
    return spelled, Conversation(
        tuple(turns),
        tools=tools.effective,
        options=_options(request, parent),
        cache=CachePolicy(implicit=hints is None or hints.mode != "explicit"),
    )


def _read(link: Link, kit: Kit) -> Iterable[Placed]:
    """Read what is stored as it was read when it was new; output begins a turn of its own."""
    for begins, stored in (False, link.input), (True, link.output):
        for item in kit.reader.read(list(stored), tuple[Item, ...]):
            yield Placed(item, PARENT, begins)
            begins = False


def _options(request: CreateRequest, parent: Stored | None) -> TemplateOptions:
    effort = request.reasoning.effort if request.reasoning else None
    spelled = Spelled(None, effort, request.preserve_thinking, effort_path="reasoning.effort")
    options = settle_options(spelled, request.chat_template_kwargs)
    if options.preserve_thinking is None and parent is not None:
        return attrs.evolve(options, preserve_thinking=parent.preserve)
    return options
