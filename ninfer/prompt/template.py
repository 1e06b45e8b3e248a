"""The chat template: variables in, sealed text out, within a budget.

Owns compiling (once, at start-up) and rendering (on any thread).  The text that comes out carries the
template's control tokens as seals and the client's text as it was.

The one thing a reader would get wrong: a template that says ``raise_exception`` refuses the
conversation (``invalid_prompt``); a template that stumbles is at fault itself
(``invalid_chat_template``).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from jinja2 import Template, TemplateError, TemplateSyntaxError

from ninfer.faults import StartupError, invalid
from ninfer.prompt.rewrite import rewrite
from ninfer.prompt.sandbox import Meter, MeteredEnvironment, Objection, Overrun
from ninfer.prompt.seals import PINS, Seals

INVALID_TEMPLATE = "invalid_chat_template"
INVALID_PROMPT = "invalid_prompt"
# Whatever a template's own expressions can raise; anything else is ours.
_STUMBLES = (
    *(TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError),
    *(RecursionError, MemoryError),
)


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self, source: str, seals: Seals, now: Callable[[], datetime.datetime] = datetime.datetime.now
    ) -> None:
        self.source = source
        self.seals = seals
        self._now = now
        environment = MeteredEnvironment(Meter(lambda: 0.0, 0.0, 1 << 20), now)
        try:
            self._code = environment.compile(rewrite(environment.parse(source), seals))
        except (TemplateSyntaxError, Overrun) as problem:
            raise StartupError(f"the chat template cannot be used: {problem}") from problem

    def render(self, variables: Mapping[str, object], meter: Meter) -> str:
        """Render to sealed text.  Raises ``Refused`` and ``Overrun``."""
        meter.made = 0
        environment = MeteredEnvironment(meter, self._now)
        template = Template.from_code(environment, self._code, environment.make_globals(None))
        try:
            return environment.joined(template.root_render_func(template.new_context(dict(variables))))
        except Objection as objection:
            raise invalid(self._spelled(objection), code=INVALID_PROMPT) from objection
        except _STUMBLES as problem:
            reason = f"{type(problem).__name__}: {self._spelled(problem)}"
            message = f"the chat template cannot render this conversation ({reason})"
            raise invalid(message, code=INVALID_TEMPLATE) from problem

    def _spelled(self, problem: Exception) -> str:
        return PINS.sub("", self.seals.unseal(str(problem)))
