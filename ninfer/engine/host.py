"""The host memory budget: images, KV and pause snapshots, those in flight included.

Owns keys and bytes.  A *blob* is what one ``HostSave`` puts there; several owners may refer to parts
of it, and its bytes come back when the last one lets go.  Promises that the bytes of all blobs never
exceed the capacity, counted from the moment a save is planned.

The one thing a reader would get wrong: a dropped blob is free for the books at once, although copies
from it may still be queued; that is sound because the device runs units in order.
"""

from __future__ import annotations

import attrs

from ninfer.engine.device import HostDrop, HostSave, Unit
from ninfer.faults import Broken


@attrs.define(eq=False)
class Blob:
    """``image`` and ``pages`` say what is inside; ``landed`` whether it has arrived."""

    key: int
    size: int  # bytes
    image: bool
    pages: int
    refs: int = 1
    landed: bool = False


@attrs.frozen
class HostStatistics:
    """Bytes, except ``images``.  ``reserved`` is the part of ``used`` whose copies are in flight."""

    capacity: int
    used: int
    reserved: int
    peak: int
    images: int
    kv: int


@attrs.define(eq=False)
class Host:
    """A budget of ``capacity`` bytes; an image and a page have a fixed size each."""

    capacity: int
    image_bytes: int
    page_bytes: int
    used: int = 0
    peak: int = 0
    _blobs: dict[int, Blob] = attrs.field(factory=dict)
    _keys: int = 0

    def size(self, image: bool, pages: int) -> int:
        """Return the bytes of an image and some pages."""
        return image * self.image_bytes + pages * self.page_bytes

    def fits(self, size: int) -> bool:
        """Whether ``size`` more bytes are free."""
        return self.used + size <= self.capacity

    def save(self, slot: int | None, pages: tuple[int, ...], units: list[Unit]) -> Blob:
        """Plan a save that fits; the caller has made room."""
        blob = self.reserve(slot is not None, len(pages))
        units.append(HostSave(blob.key, slot, pages))
        return blob

    def reserve(self, image: bool, pages: int) -> Blob:
        """Give out a key and its bytes, which must be free."""
        size = self.size(image, pages)
        if not self.fits(size):
            raise Broken(f"{size} bytes saved beside {self.used} of {self.capacity}")
        self._keys += 1
        blob = Blob(self._keys, size, image, pages)
        self._blobs[blob.key] = blob
        self.used += size
        self.peak = max(self.peak, self.used)
        return blob

    def share(self, blob: Blob) -> Blob:
        """Add an owner."""
        blob.refs += 1
        return blob

    def drop(self, blob: Blob, units: list[Unit]) -> None:
        """Give up one owner's claim; the last one frees the bytes."""
        blob.refs -= 1
        if blob.refs < 0:
            raise Broken(f"blob {blob.key} was dropped too often")
        if not blob.refs:
            del self._blobs[blob.key]
            self.used -= blob.size
            units.append(HostDrop(blob.key))

    def landed(self, key: int) -> None:
        """Hear that a save has arrived."""
        if key in self._blobs:
            self._blobs[key].landed = True

    def statistics(self) -> HostStatistics:
        """Say how the budget is spent."""
        blobs = self._blobs.values()
        return HostStatistics(
            capacity=self.capacity,
            used=self.used,
            reserved=sum(blob.size for blob in blobs if not blob.landed),
            peak=self.peak,
            images=sum(blob.image for blob in blobs),
            kv=sum(blob.pages for blob in blobs) * self.page_bytes,
        )

    def check(self, claims: list[Blob]) -> None:
        """Raise ``Broken`` unless blobs, owners and bytes are exactly what is claimed."""
        refs: dict[int, int] = {}
        for blob in claims:
            refs[blob.key] = refs.get(blob.key, 0) + 1
        if refs != {key: blob.refs for key, blob in self._blobs.items()}:
            raise Broken(f"host blobs {self._blobs} are claimed as {refs}")
        if self.used != sum(blob.size for blob in self._blobs.values()) or self.used > self.capacity:
            raise Broken("the host bytes drifted")
