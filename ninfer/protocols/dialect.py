"""The wire habits that may differ between dialects, and the kit every protocol is built from.

Owns the ``Dialect`` value (its defaults are the native dialect) and ``Kit``.  A protocol asks the
dialect at the few points listed here and has no other switch, so all differences of a dialect stand
in the module that builds it.

The one thing a reader would get wrong: ``adapt`` sees the parsed body *before* the schema does; what
it removes or fills in is what the schema then judges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol, TypeVar

import attrs

from ninfer.faults import Fault, Kind, Refused
from ninfer.http.body import QUICK_BYTES
from ninfer.http.exchange import Reply
from ninfer.protocols.fields import Reader, ReadJson
from ninfer.protocols.frames import Mint
from ninfer.protocols.service import Finished, ModelCard, Service
from ninfer.protocols.status import RenderFault, render_fault
from ninfer.settings import ResponseStoreLimits

Endpoint = Literal["chat", "messages"]
Warn = Callable[[str], None]
T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function where it holds up no other request."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what ``work`` returns; raise what it raises."""


async def in_place(work: Callable[[], T]) -> T:
    """Run a function where the caller stands."""
    return work()


def same_body(endpoint: Endpoint, body: object) -> object:
    """Leave a parsed body as it is."""
    return body


def same_reply(fault: Fault, reply: Reply) -> Reply:
    """Leave an error answer as the protocol made it."""
    return reply


def no_frames(finished: Finished) -> tuple[bytes, ...]:
    """Add nothing to the end of a stream."""
    return ()


def must_match(label: str, card: ModelCard) -> str:
    """Accept the served model's id alone; returns what answers call the model."""
    if label != card.id:
        message = f"the model {label!r} is not served here; this server serves {card.id!r}"
        raise Refused(Fault(Kind.NOT_FOUND, message, "model_not_found", "model"))
    return card.id


@attrs.frozen
class Dialect:
    """One set of wire habits.

    ``malformed`` shapes the answer to a request found wrong while it is read, ``failed`` the answer
    to any other fault before a stream began.  ``before_done`` are frames between the last chunk of
    a Chat stream and ``[DONE]``; ``after_stop`` are frames after ``message_stop``.
    """

    name: str = "ninfer"
    adapt: Callable[[Endpoint, object], object] = same_body
    label: Callable[[str, ModelCard], str] = must_match
    malformed: Callable[[Fault, Reply], Reply] = same_reply
    failed: Callable[[Fault, Reply], Reply] = same_reply
    before_done: Callable[[Finished], tuple[bytes, ...]] = no_frames
    after_stop: tuple[bytes, ...] = ()
    render_fault: RenderFault = render_fault
    health_extra: Mapping[str, object] = attrs.field(factory=dict)


@attrs.frozen
class Kit:
    """What a protocol is built from.

    ``read_json`` raises ``Refused``; ``mint`` gives 64 random bits; ``now`` gives Unix seconds;
    ``preserve_thinking`` is the server's own setting of that switch.
    """

    service: Service
    reader: Reader
    read_json: ReadJson
    mint: Mint
    now: Callable[[], float]
    dialect: Dialect = Dialect()
    run_blocking: RunBlocking = in_place
    responses: ResponseStoreLimits = attrs.field(factory=ResponseStoreLimits)
    preserve_thinking: bool | None = None

    async def reading(self, body: bytes, work: Callable[[], T]) -> T:
        """Run the reading of a body: a small one in place, a large one on a worker thread."""
        return await self.at_size(len(body), work)

    async def at_size(self, size: int, work: Callable[[], T]) -> T:
        """Run work on ``size`` bytes of JSON: little of it in place, much of it on a worker thread."""
        return work() if size <= QUICK_BYTES else await self.run_blocking(work)
