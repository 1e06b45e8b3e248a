"""Where media may come from, for every protocol alike.

The one thing a reader would get wrong: a server never reads a local path for a client, so whatever is
not a web address or the data itself is refused before anything looks at it.
"""

from __future__ import annotations

import re

from ninfer.protocols.rules import misfit

_REMOTE = re.compile(r"(https?://|data:)", re.IGNORECASE)


def check_source(url: str, path: str) -> None:
    """Refuse a source that is neither on the web nor data; ``path`` names it.  Raises ``Refused``."""
    if not _REMOTE.match(url):
        raise misfit(path, "must be an http, https or data URL", "invalid_media")
