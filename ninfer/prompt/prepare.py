"""Conversation to prepared prompt: the one way in, for answering and for counting alike.

``Preparer.prepare`` is pure apart from the clock that bounds it, and safe on any thread; callers run
it on a worker, because rendering holds the interpreter lock and tokenising takes time without it.

The one thing a reader would get wrong: the context limit is not checked here.  Only text that is
absurdly longer than any prompt of that context is refused before it is tokenised.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence

from ninfer.faults import Broken, Refused, invalid
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.frontiers import tokenise
from ninfer.prompt.marks import Cut, input_boundary, shared_cuts, shared_places
from ninfer.prompt.media import PADS, Expansion, MediaItem, expand, positions, spans
from ninfer.prompt.options import Options, resolve
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.prompt.sandbox import Meter, Overrun
from ninfer.prompt.seals import SEAL_RUNS, has_surrogate
from ninfer.prompt.template import INVALID_PROMPT, INVALID_TEMPLATE, ChatTemplate
from ninfer.prompt.tokens import Vocabulary
from ninfer.prompt.traits import Traits, examine
from ninfer.prompt.variables import Pins, client_strings, template_variables
from ninfer.settings import GenerationDefaults, PromptBudget

_TURN = "<|im_start|>"
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_PROBE_CHARS = 1 << 20  # the long conversation of the examination has a tenth of this
_BUDGET, _DEFAULTS = PromptBudget(), GenerationDefaults()


class Preparer:
    """Turns conversations into prompts of one artifact."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: str,
        *,
        max_context: int,
        budget: PromptBudget = _BUDGET,
        defaults: GenerationDefaults = _DEFAULTS,
        merge: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Compile and examine the template.  ``merge`` patches a side make one vision token; None
        refuses media.  Raises ``StartupError`` for a template that cannot serve."""
        self.vocabulary = vocabulary
        self.max_context = max_context
        self._template = ChatTemplate(template, vocabulary.seals, now)
        self._budget = budget
        self._defaults = defaults
        self._merge = merge
        self._clock = clock
        self._size = max(budget.least_chars, budget.chars_per_token * max_context)
        self._turn = vocabulary.seals.of(_TURN)
        self._names = {name: vocabulary.seals.seal(text) for name, text in vocabulary.names.items()}
        self._traits: Traits = examine(self._template, self._names, lambda: self._meter(_PROBE_CHARS))

    def options(self, conversation: Conversation) -> Options:
        """Return the switches that this conversation is rendered with."""
        return resolve(conversation.options, self._defaults)

    def prepare(self, conversation: Conversation, media: Sequence[MediaItem] = ()) -> Prepared:
        """Return the prompt; ``media`` are the conversation's items, decoded, in its order.

        Raises ``Refused`` (invalid_prompt, invalid_chat_template, template options, media, length).
        """
        self._check(conversation, media)
        try:
            text, cuts = self._rendered(conversation)
        except Overrun as overrun:
            raise self._too_costly(overrun) from overrun
        expansion = expand(text, media, self.vocabulary.seals, self._merge or 1)
        return self._tokenised(expansion, cuts, media)

    def _meter(self, least: int = 0) -> Meter:
        return Meter(self._clock, self._clock() + self._budget.seconds, max(least, self._size))

    def _check(self, conversation: Conversation, media: Sequence[MediaItem]) -> None:
        """Refuse what no template should see."""
        length = 0
        for text in client_strings(conversation):
            length += len(text)
            if has_surrogate(text):
                raise invalid("text holds a lone surrogate, which is no Unicode text", code=INVALID_PROMPT)
        if length > self._size:
            raise self._too_costly(Overrun("size"))
        parts = [part for message in conversation.messages for part in message.parts]
        items = [part for part in parts if isinstance(part, MediaPart)]
        if items and self._merge is None:
            message = "this server was started without vision and takes no images or videos"
            raise invalid(message, param=items[0].param, code="vision_disabled")
        if [part.kind for part in items] != [item.kind for item in media]:
            raise Broken("the prepared media are not those of the conversation")
        last = conversation.messages[-1] if conversation.messages else None
        if conversation.continue_final and (last is None or last.role != "assistant" or last.calls):
            raise invalid("only a final assistant text can be continued", code=INVALID_PROMPT)

    def _rendered(self, conversation: Conversation) -> tuple[str, list[Cut]]:
        """Return the sealed text and the boundaries worth a checkpoint."""
        options, meter = self.options(conversation), self._meter()

        def render(pins: Pins | None = None, shown: Conversation = conversation) -> str:
            found = template_variables(shown, developer=self._traits.developer, pins=pins)
            return self._template.render({**self._names, **options.variables, **found}, meter)

        text = render()
        cuts = shared_cuts(text, shared_places(conversation), render)
        keeps = options.preserve_thinking
        if keeps is None:
            keeps = self._traits.keeps_reasoning
        boundary = input_boundary(text, conversation, keeps, self._turn, lambda shown: render(shown=shown))
        if boundary is not None:
            cuts.append(Cut(MarkKind.INPUT, (boundary,)))
        return (_opened(text) if conversation.continue_final else text), cuts

    def _tokenised(self, expansion: Expansion, cuts: list[Cut], media: Sequence[MediaItem]) -> Prepared:
        """Return ids, marks and, with media, spans and positions."""
        text = expansion.text
        offsets = [expansion.moved(offset) for cut in cuts for offset in cut.offsets]
        ids, counts = tokenise(self.vocabulary, text, [min(offset, len(text)) for offset in offsets])
        counted = iter(counts)
        found = []
        for cut in cuts:
            exact = [count for count in (next(counted) for _ in cut.offsets) if count]
            found += [Mark(index, cut.kind) for index in exact[:1]]
        marks = tuple(sorted(dict.fromkeys(found), key=lambda mark: mark.index))
        thinking = self._ends_thinking(text)
        if not media:
            return Prepared(tuple(ids), thinking, marks=marks)
        placed = spans(ids, media, [self.vocabulary.special(pad) for pad in PADS.values()])
        axes, delta = positions(len(ids), placed, self._merge or 1)
        return Prepared(tuple(ids), thinking, axes, delta, placed, marks)

    def _ends_thinking(self, text: str) -> bool:
        """Tell whether the last turn of the text has an open reasoning block."""
        seals = self.vocabulary.seals
        opened, closed, turn = (
            text.rfind(seal) if seal else -1
            for seal in (seals.of(_THINK_OPEN), seals.of(_THINK_CLOSE), self._turn)
        )
        return opened > max(closed, turn)

    def _too_costly(self, overrun: Overrun) -> Refused:
        if str(overrun) == "time":
            seconds = self._budget.seconds
            message = f"the chat template took longer than {seconds:g} s to render this conversation"
            return invalid(message, code=INVALID_TEMPLATE)
        message = (
            f"the prompt is longer than {self._size} characters, more than"
            f" the context of {self.max_context} tokens can hold"
        )
        return invalid(message, code="context_length_exceeded")


def _opened(text: str) -> str:
    """Leave the last turn of sealed text open: drop the control token that closes it, and what follows."""
    ends = [run.end() for run in SEAL_RUNS.finditer(text)]
    return text[: ends[-1] - 1] if ends else text
