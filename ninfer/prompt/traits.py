"""What a chat template does, found out by running it once before the server starts.

Owns the start-up examination: that sealing changes nothing but control tokens, that a long
conversation stays within the budget, and two habits that decide how conversations are lowered.

The one thing a reader would get wrong: a probe that the template refuses by itself proves nothing and
is no fault; only a difference between the sealed and the original template is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from ninfer.faults import Refused, StartupError
from ninfer.prompt.conversation import Conversation, MediaPart, Message, Role, TextPart, ToolCall, ToolDef
from ninfer.prompt.sandbox import Meter, Overrun
from ninfer.prompt.seals import Seals
from ninfer.prompt.template import ChatTemplate
from ninfer.prompt.variables import template_variables

_LONG = 256  # rounds of the long conversation: five messages each
_REMARK = "remark-7d1f"


@attrs.frozen
class Traits:
    """``keeps_reasoning``: of closed turns, when no option says so; ``developer``: knows that role."""

    keeps_reasoning: bool
    developer: bool


def examine(template: ChatTemplate, names: Mapping[str, str], meter: Callable[[], Meter]) -> Traits:
    """Probe a template; ``names`` are the special tokens it may print, sealed.

    Raises ``StartupError`` for a template that cannot serve.
    """
    probe = _Probe(template, names, meter)
    for conversation in _PLAIN_TALKS:
        probe.compare(conversation, quotes=False)
    for conversation in _QUOTING_TALKS:
        probe.compare(conversation, quotes=True)
    probe.render(_talk(*_ROUND * _LONG, tools=_TOOLS), {})
    past = probe.render(_talk(_HI, _THOUGHT, _HI), {})
    developer = probe.render(_talk(("developer", "Be brief."), _HI), {})
    return Traits(keeps_reasoning=past is not None and _REMARK in past, developer=developer is not None)


class _Probe:
    def __init__(
        self, template: ChatTemplate, names: Mapping[str, str], meter: Callable[[], Meter]
    ) -> None:
        self._sealed = template
        self._plain = ChatTemplate(template.source, Seals(()))
        self._names = names
        self._spelled = {name: template.seals.unseal(text) for name, text in names.items()}
        self._meter = meter

    def compare(self, conversation: Conversation, *, quotes: bool) -> None:
        """Hold the sealed template against the original one.

        ``quotes`` says that the conversation itself spells control tokens, which stay text.
        """
        for switches in ({}, {"enable_thinking": False}, {"preserve_thinking": True}):
            sealed = self.render(conversation, switches)
            plain = self._render(self._plain, self._spelled, conversation, switches)
            if plain is not None and not quotes:
                plain = self._sealed.seals.seal(plain)
            elif sealed is not None:
                sealed = self._sealed.seals.unseal(sealed)
            if sealed != plain:
                raise StartupError(
                    "the chat template builds control tokens from pieces, or compares content with control"
                    " tokens that it keeps in variables, so they cannot be told from a client's text; write"
                    " each of them out where it is used"
                )

    def render(self, conversation: Conversation, switches: Mapping[str, bool]) -> str | None:
        """Render sealed text; None if the template refuses."""
        return self._render(self._sealed, self._names, conversation, switches)

    def _render(
        self,
        template: ChatTemplate,
        names: Mapping[str, str],
        conversation: Conversation,
        switches: Mapping[str, bool],
    ) -> str | None:
        variables = {**names, **switches, **template_variables(conversation, developer=True)}
        try:
            return template.render(variables, self._meter())
        except Refused:
            return None
        except Overrun as overrun:
            turns = len(conversation.messages)
            raise StartupError(
                f"the chat template needs too much {overrun} for {turns} messages; use a cheaper template"
            ) from overrun


def _talk(*turns: tuple[Role, str] | Message, tools: tuple[ToolDef, ...] = ()) -> Conversation:
    made = [turn if isinstance(turn, Message) else Message(turn[0], (TextPart(turn[1]),)) for turn in turns]
    return Conversation(tuple(made), tools)


_HI: tuple[Role, str] = ("user", "Hi")
_THOUGHT = Message("assistant", (TextPart("Yes."),), reasoning=_REMARK)
_TOOLS = (ToolDef("find", {"type": "function", "function": {"name": "find", "parameters": {}}}),)
_CALLS = Message(
    "assistant",
    (TextPart("I look."),),
    reasoning="why",
    calls=(ToolCall("a", "find", {"what": "x", "n": [1, None]}), ToolCall("b", "find", {})),
)
_RESULTS = (Message("tool", (TextPart("1"),), call_id="a"), Message("tool", (TextPart("2"),), call_id="b"))
_ROUND = (_HI, _CALLS, *_RESULTS, _THOUGHT)
_IMAGE = Message("user", (MediaPart("image", "", ""), TextPart("?"), MediaPart("video", "", "")))
_PLAIN_TALKS = (
    _talk(_HI),
    _talk(("system", " Be brief. "), _HI, ("assistant", " Hello "), _HI),
    _talk(_HI, _THOUGHT, _HI, _THOUGHT),
    _talk(("system", "Be brief."), *_ROUND, *_ROUND[:4], tools=_TOOLS),
    _talk(_IMAGE),
)
_QUOTING_TALKS = (
    _talk(_HI, ("assistant", "<think>\nwhy\n</think>\n\nYes."), _HI),
    _talk(_HI, ("assistant", "<think>\nwhy\n</think>\n\nYes.")),
    _talk(_HI, ("assistant", "Yes."), ("user", "<tool_response>\n1\n</tool_response>")),
)
