"""Responses kept for retrieval and continuation: least recently used first out, by count and by bytes.

Owns every stored response and the items that its conversation consists of.  Promises that what is kept
never costs more than the limits, that a deleted or evicted response is gone for its clients, and that
its items stay for as long as a stored descendant needs them.

The one thing a reader would get wrong: items are shared between the responses of a chain, so a ``Link``
counts its holders; it costs its bytes once while anyone holds it, and nothing afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import attrs

from ninfer.faults import Fault, Kind, Refused
from ninfer.prompt.conversation import Json
from ninfer.protocols.fields import misfit
from ninfer.settings import ResponseStoreLimits

OVERHEAD = 1_024  # bytes of bookkeeping charged for each link and each response

JsonItem = dict[str, Json]


def footprint(value: object) -> int:
    """Measure the memory of a JSON value, in bytes."""
    total, stack = 0, [value]
    while stack:
        inner = stack.pop()
        total += sys.getsizeof(inner)
        if isinstance(inner, Mapping):
            stack += [*inner, *inner.values()]
        elif isinstance(inner, (list, tuple)):
            stack += inner
    return total


@attrs.define(eq=False)
class Link:
    """What one response added to its conversation; ``parent`` is what came before.

    ``size`` is the bytes of this link, ``total`` those of all links up to the root.
    """

    parent: Link | None
    input: tuple[JsonItem, ...]
    output: tuple[JsonItem, ...]
    size: int
    holders: int = 0
    total: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.total = self.size + (self.parent.total if self.parent else 0)

    def line(self) -> list[Link]:
        """Return the links from the root to this one."""
        found: list[Link] = []
        link: Link | None = self
        while link is not None:
            found.append(link)
            link = link.parent
        return found[::-1]


@attrs.frozen(eq=False)
class Stored:
    """One terminal response; ``size`` is its bytes without those of its items.

    ``session`` groups the responses of one root; ``preserve`` is the resolved switch that children
    inherit (None: the template's own default).
    """

    id: str
    response: Mapping[str, object]
    link: Link
    session: str
    preserve: bool | None
    size: int


class ResponseStore:
    """The stored responses of one server."""

    def __init__(self, limits: ResponseStoreLimits) -> None:
        self.limits = limits
        self.bytes = 0
        self._stored: dict[str, Stored] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Stored]:
        return iter(self._stored.values())

    def find(self, id: str, param: str | None = None) -> Stored:
        """Return a response and count it as used.  Raises ``Refused`` (404)."""
        stored = self._stored.pop(id, None)
        if stored is None:
            message = "no response of this id is stored"
            raise Refused(Fault(Kind.NOT_FOUND, message, "response_not_found", param))
        self._stored[id] = stored
        return stored

    def put(self, stored: Stored) -> None:
        """Keep a response, at the cost of the least recently used.  Raises ``Refused``."""
        self.check(stored.size + stored.link.total)
        self._stored[stored.id] = stored
        self.bytes += stored.size
        self._hold(stored.link)
        while len(self._stored) > self.limits.records or self.bytes > self.limits.bytes:
            self.delete(next(iter(self._stored)))

    def check(self, size: int) -> None:
        """Refuse what could not be kept even alone."""
        if size > self.limits.bytes:
            complaint = f"asks to keep more than the {self.limits.bytes} bytes that the store holds"
            raise misfit("store", complaint, "response_store_capacity_exceeded")

    def delete(self, id: str) -> None:
        """Forget a response; its items stay while descendants hold them.  Raises ``Refused`` (404)."""
        stored = self.find(id)
        del self._stored[id]
        self.bytes -= stored.size
        self._release(stored.link)

    def _hold(self, start: Link) -> None:
        """Add a holder; a link that had none holds its parent from now on."""
        link: Link | None = start
        while link is not None:
            link.holders += 1
            if link.holders > 1:
                return
            self.bytes += link.size
            link = link.parent

    def _release(self, start: Link) -> None:
        link: Link | None = start
        while link is not None:
            link.holders -= 1
            if link.holders:
                return
            self.bytes -= link.size
            link = link.parent
