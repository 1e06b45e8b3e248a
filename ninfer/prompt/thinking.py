"""The early close of a reasoning block: its text, its tokens, and the room that it needs.

The one thing a reader would get wrong: the text begins with two newlines and ONE SPACE.  Models of
this family were trained to see it exactly so.
"""

from __future__ import annotations

from ninfer.engine.job import ThinkingPlan
from ninfer.faults import invalid
from ninfer.prompt.tokens import Vocabulary

EARLY_CLOSE = (
    "\n\n Considering the limited time by the user, I have to give the solution"
    " based on the thinking directly now.\n</think>\n\n"
)


def thinking_plan(vocabulary: Vocabulary, budget: int) -> ThinkingPlan:
    """Return the cap of ``budget`` model tokens and the tokens that follow when it is reached."""
    control = vocabulary.encode_sealed(vocabulary.seals.seal(EARLY_CLOSE))
    return ThinkingPlan(budget, tuple(control))


def check_thinking_capacity(plan: ThinkingPlan, capacity: int, param: str) -> None:
    """Refuse an output capacity (tokens) that lets the cap fire but cannot hold its close and one
    token after it."""
    if not plan.fits(capacity):
        message = (
            f"{capacity} output tokens cannot hold a thinking budget of {plan.budget},"
            f" the {len(plan.control)} tokens that close it and one more:"
            f" allow at least {plan.needed}, or at most {plan.budget}"
        )
        raise invalid(message, param=param, code="thinking_budget_capacity_insufficient")
