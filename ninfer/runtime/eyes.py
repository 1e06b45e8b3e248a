"""The vision tower in use: encodes an item once for a lane and keeps its rows while the prompt fills.

The one thing a reader would get wrong: rows are kept per lane and dropped as soon as the item's last
placeholder has been forwarded, or the lane gets another request; nothing is shared between requests.
"""

from __future__ import annotations

import attrs

from ninfer.model.vision import Tower, encode
from ninfer.ops.verbs import Array
from ninfer.ops.vision_verbs import Patches, VisionVerbs
from ninfer.prompt.prepared import MediaSpan


@attrs.define(eq=False)
class Eyes:
    """Feature rows by lane and first placeholder."""

    verbs: VisionVerbs
    tower: Tower
    _kept: dict[int, dict[int, Array]] = attrs.field(factory=dict)

    def features(self, lane: int, span: MediaSpan, until: int) -> Array:
        """Return an item's feature rows (placeholders, hidden), encoding it if need be.

        ``until`` is the frontier after this unit: an item that ends before it is not kept.
        """
        kept = self._kept.setdefault(lane, {})
        rows = kept.pop(span.start, None)
        if rows is None:
            shape = Patches(*span.grid, merge=self.tower.config.merge)
            rows = encode(self.verbs, self.tower, span.payload, shape)
        if span.stop > until:
            kept[span.start] = rows
        return rows

    def forget(self, lane: int) -> None:
        """Drop what was kept for a lane."""
        self._kept.pop(lane, None)
