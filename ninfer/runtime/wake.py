"""Calling back into an event loop from another thread, without blocking that thread.

The one thing a reader would get wrong: anyio's own ``from_thread`` waits for the loop; the device's
thread must not, so this module asks the loop's native token (trio's or asyncio's) directly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio.lowlevel

Waker = Callable[[Callable[[], object]], None]


def waker() -> Waker:
    """Return what runs a callback on the current loop; call it on any thread.

    A loop that has ended is ignored: nobody waits there.
    """
    native: Any = anyio.lowlevel.current_token().native_token
    soon = getattr(native, "run_sync_soon", None) or native.call_soon_threadsafe

    def wake(callback: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # trio's RunFinishedError is one too
            soon(callback)

    return wake
