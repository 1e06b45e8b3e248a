"""Reading one request within the patience we have.

Owns the deadlines of head and body.  Promises that a request that drips is refused on the exact
second at which it breaks a bound, and that a whole body costs one buffer and no copy.

The one thing a reader would get wrong: a body has two bounds.  No gap may be longer than ``stall``,
and after ``body_floor_after`` seconds its average must keep the floor rate; the second is a
deadline that every received byte moves.
"""

from __future__ import annotations

import io

import anyio
import attrs
from anyio.abc import ByteReceiveStream

from ninfer.http.exchange import PeerGone
from ninfer.http.head import Head
from ninfer.http.house import Holding
from ninfer.http.refusals import too_slow
from ninfer.http.wire import End, Wire
from ninfer.settings import Patience

READ_BYTES = 65_536


@attrs.define(eq=False)
class Intake:
    """Feeds one wire from a stream; a reset of the stream is ``PeerGone``."""

    stream: ByteReceiveStream
    wire: Wire
    patience: Patience

    async def head(self, first: bytes) -> Head:
        """Read a head whose first bytes are here; raise ``Turned``."""
        deadline = anyio.current_time() + self.patience.head
        self.wire.feed(first)
        while (event := self.wire.next_event()) is None:
            await self._more(deadline, "the request head did not arrive in time")
        assert isinstance(event, Head)
        return event

    async def body(self, holding: Holding) -> bytes:
        """Read the body to its end; raise ``Turned``."""
        begun = last = anyio.current_time()
        buffer = io.BytesIO()
        while (event := self.wire.next_event()) is not End.END:
            if isinstance(event, bytes):
                holding.take(len(event))
                buffer.write(event)
                continue
            kept_up = max(self.patience.body_floor_after, holding.held / self.patience.body_floor)
            deadline = min(last + self.patience.stall, begun + kept_up)
            await self._more(deadline, "the request body did not arrive in time")
            last = anyio.current_time()
        return buffer.getvalue()

    async def _more(self, deadline: float, complaint: str) -> None:
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                data = await self.stream.receive(READ_BYTES)
        except TimeoutError:
            raise too_slow(complaint) from None
        except anyio.EndOfStream:
            self.wire.feed_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise PeerGone from None
        else:
            self.wire.feed(data)
