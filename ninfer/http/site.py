"""What a server is told about the site it serves: routes, error shapes, ids, limits.

Owns nothing; it is the one value through which protocols and options reach this room.

The one thing a reader would get wrong: ``render_fault`` gives a body, not a status.  Statuses of
refusals made here are decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache

import attrs

from ninfer.faults import Fault
from ninfer.http import cors
from ninfer.http.auth import KeyCheck
from ninfer.http.refusals import Fields
from ninfer.http.routes import Router
from ninfer.settings import Patience, WireLimits

RenderFault = Callable[[str, int, Fault, str], bytes]
"""(path, status, fault, request id) to the body of an error answer; ``""`` is an unknown path."""


@attrs.frozen
class Site:
    """Everything the connections of one server share and none of them changes.

    ``new_id`` makes the id of each request; ``id_fields`` names the header field that carries it,
    by path prefix, ``x-request-id`` elsewhere.  ``on_crash`` hears (request id, exception) of every
    handler that failed by a fault of ours, ``on_answered`` (request id, whether its answer went out
    whole) of every one that is over; they must not raise.  ``wall_clock`` dates the answers.
    """

    router: Router
    render_fault: RenderFault
    new_id: Callable[[], str]
    on_crash: Callable[[str, BaseException], None]
    on_answered: Callable[[str, bool], None] = lambda request_id, whole: None
    id_fields: tuple[tuple[str, str], ...] = ()
    key: KeyCheck = attrs.field(factory=KeyCheck)
    cors: bool = False
    limits: WireLimits = attrs.field(factory=WireLimits)
    patience: Patience = attrs.field(factory=Patience)
    wall_clock: Callable[[], float] = time.time

    def fields(self, path: str, request_id: str) -> Fields:
        """Header fields that every answer carries."""
        date = _date(int(self.wall_clock()))
        fields: Fields = (("date", date), (self._id_field(path), request_id))
        return (*fields, *cors.EVERY_ANSWER) if self.cors else fields

    def _id_field(self, path: str) -> str:
        for prefix, name in self.id_fields:
            if path == prefix or path.startswith(prefix + "/"):
                return name
        return "x-request-id"


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
