"""What of the retained histories is on disk: an index of exact paths, and who goes when room is short.

Owns the tree of what files hold, and their bytes.  A file holds the KV of the last tokens of a history, or
the image at its end.  Promises exact matching (see ``identity``), that files together stay within their
bound, and that what goes first is what costs least to lose for each byte, leaves and images alone.

The one thing a reader would get wrong: nothing here touches a file.  Whoever does removes ``rubbish``, and
says what was written and what turned out to be bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import attrs

from ninfer.engine.costs import prefill_seconds
from ninfer.engine.identity import ID, Identity, TokenKey
from ninfer.engine.prefix import Kind
from ninfer.engine.shelf import Shelf
from ninfer.settings import ContextCosts

ENDING = 64  # tokens that find the place where a history ends
KINDS = tuple(Kind)  # a file names its kind by index: append, never reorder


@attrs.frozen(eq=False)
class Stretch:
    """What one file holds of the history ``whole``: the KV of its tokens from ``start`` on.

    Where nothing is left of them it holds the image at the end of ``whole`` instead.  ``payload`` and
    ``size`` are bytes of the state and of the file, ``digest`` proves the state.
    """

    name: str
    whole: Identity
    start: int
    kind: int
    payload: int
    size: int
    digest: bytes

    @property
    def stop(self) -> int:
        """Where its history ends."""
        return self.whole.stop

    @property
    def image(self) -> bool:
        """Whether it holds an image, and no KV."""
        return self.start == self.stop


@attrs.frozen
class Foreign:
    """A file that is nobody's here."""

    name: str
    size: int


@attrs.define(eq=False)
class Place:
    """Some tokens of a history on disk: ``kv`` holds theirs and more, ``image`` the state behind them."""

    parent: Place | None
    part: Identity
    kv: Stretch | None = None
    image: Stretch | None = None
    kind: Kind = Kind.PATH
    hits: int = 0
    children: dict[TokenKey, Place] = attrs.field(factory=dict)

    @property
    def frontier(self) -> int:
        """How many tokens the history up to here has."""
        return self.part.stop

    def base(self) -> int:
        """Return the frontier of the nearest image above."""
        place = self.parent
        while place is not None and place.image is None:
            place = place.parent
        return place.frontier if place else 0


def _end(whole: Identity, stop: int) -> tuple[int, bytes]:
    """Return what finds the place where a history ends; those few that share it are compared whole."""
    return stop, whole.ids[max(0, stop - ENDING) * ID : stop * ID]


@attrs.frozen
class DiskStatistics:
    """Bytes and files, those of others included."""

    capacity: int
    used: int
    files: int


@attrs.define(eq=False)
class Disk:
    """At most ``capacity`` bytes of files; none without a folder."""

    costs: ContextCosts
    capacity: int = 0
    used: int = 0
    root: Place = attrs.field(factory=lambda: Place(None, Identity(0, b"")))
    rubbish: list[str] = attrs.field(factory=list)  # names of files that nothing refers to any more
    _foreign: list[Foreign] = attrs.field(factory=list)
    _users: dict[str, int] = attrs.field(factory=dict)  # how many places a file serves, by its name
    _ends: dict[tuple[int, bytes], list[Place]] = attrs.field(factory=dict)  # places by what ends them
    _shelf: Shelf[Place] = attrs.field(factory=Shelf)  # leaves, and what has an image

    def __iter__(self) -> Iterator[Place]:
        todo = list(self.root.children.values())
        while todo:
            place = todo.pop()
            todo += place.children.values()
            yield place

    def __len__(self) -> int:
        """Return how many files are known."""
        return len(self._users)

    # Reading

    def way(self, whole: Identity) -> tuple[list[Place], int]:
        """Follow a history; return the places it leads through, and how many of its tokens are known.

        The last place may agree with the history in its first tokens only.
        """
        return self._way_from(self.root, whole)

    def _way_from(self, place: Place, whole: Identity) -> tuple[list[Place], int]:
        places, known = [place], place.frontier
        while known == places[-1].frontier < whole.stop:
            child = places[-1].children.get(whole.key(known))
            if child is None:
                break
            known = child.part.agrees(whole)
            places.append(child)
        return places[1:], known

    def _start(self, stretch: Stretch) -> Place:
        """Return where to begin to look for the end of a file: at its own beginning, if a place ends there.

        What lies there holds its whole history, so one comparison says what a walk from the root would.
        """
        for place in self._ends.get(_end(stretch.whole, stretch.start), ()):
            if place.kv is not None and place.kv.whole.agrees(stretch.whole) >= stretch.start:
                return place
        return self.root

    def match(self, whole: Identity) -> list[Place]:
        """Return the places that a history leads through to their end, root side first."""
        places, known = self.way(whole)
        return [place for place in places if place.frontier <= known]

    def at(self, whole: Identity) -> Place | None:
        """Return the place where a history ends, if one does exactly there."""
        places = self.match(whole)
        return places[-1] if places and places[-1].frontier == whole.stop else None

    # Growing

    def add(self, stretch: Stretch) -> bool:
        """Take in a file; one that nothing leads to, or that adds nothing, is rubbish."""
        self._foreign, before = [one for one in self._foreign if one.name != stretch.name], self._foreign
        self.used -= sum(one.size for one in before) - sum(one.size for one in self._foreign)
        start = self._start(stretch)
        _, known = self._way_from(start, stretch.whole)
        place = self._reach(start, stretch) if known >= stretch.start else None
        if place is not None and stretch.image and place.image is None:
            place.image, place.kind = stretch, KINDS[stretch.kind]
            self._use(stretch)
        if stretch.name not in self._users:
            self.rubbish.append(stretch.name)
            return False
        for each in (place, place and place.parent):
            self._shelve(each)
        return True

    def _reach(self, place: Place, stretch: Stretch) -> Place:
        """Go on from a place to the end of a file's history, cut off or made where it is missing."""
        whole = stretch.whole
        while place.frontier < whole.stop:
            child = place.children.get(whole.key(place.frontier))
            if child is None:
                child = self._place(place, whole.part(place.frontier, whole.stop), stretch)
                place.children[whole.key(place.frontier)] = child
                self._use(stretch)
            elif (common := child.part.agrees(whole)) < child.frontier:
                child = self._split(child, common)
            place = child
        return place

    def _place(self, above: Place, part: Identity, kv: Stretch) -> Place:
        place = Place(above, part, kv)
        self._ends.setdefault(_end(kv.whole, part.stop), []).append(place)
        return place

    def _split(self, lower: Place, at: int) -> Place:
        """Cut a place in two; the file of its KV serves both."""
        above, part = lower.parent, lower.part
        assert above is not None and lower.kv is not None
        upper = self._place(above, part.part(part.start, at), lower.kv)
        self._use(lower.kv)
        above.children[part.key(part.start)] = upper
        lower.parent, lower.part = upper, part.part(at, part.stop)
        upper.children[part.key(at)] = lower
        self._shelve(lower)
        return upper

    def _use(self, stretch: Stretch) -> None:
        if stretch.name not in self._users:
            self.used += stretch.size
        self._users[stretch.name] = self._users.get(stretch.name, 0) + 1

    def add_foreign(self, file: Foreign) -> None:
        """Count a file of others; it stays until its room is needed."""
        self._foreign.append(file)
        self.used += file.size

    # Worth

    def loss(self, place: Place) -> float:
        """Return the seconds of recomputation that losing this image is expected to cost."""
        base = place.base()
        again = prefill_seconds(self.costs, base, place.frontier - base)
        return place.kind.value * (1 + place.hits) * again if place.image else 0.0

    def _shelve(self, place: Place | None) -> None:
        """Put a place where its present state belongs."""
        if place is None or place.parent is None:
            return
        size = place.image.size if place.image else 0
        if not place.children and place.kv is not None:
            size += place.kv.size
        if size:
            self._shelf.put(place, self.loss(place) / size)
        else:
            self._shelf.drop(place)

    def value(self, place: Place, kind: Kind, hits: int) -> None:
        """Hear what an image is worth in memory, and how often it was asked for there."""
        if place.kind is not kind or hits > place.hits:
            place.kind, place.hits = kind, max(hits, place.hits)
            self._shelve(place)

    def hit(self, place: Place) -> None:
        """Hear that an image was asked for."""
        place.hits += 1
        self._shelve(place)

    # Shrinking

    def make_room(self, size: int, worth: float | None, keep: Set[Place] = frozenset()) -> bool:
        """Give up files until ``size`` bytes more fit: foreign ones first, then what is worth least.

        With ``worth``, nothing goes that is worth more a byte; nor does anything of ``keep``.
        """
        while size <= self.capacity < self.used + size:
            if self._foreign:
                file = self._foreign.pop(0)
                self.used -= file.size
                self.rubbish.append(file.name)
                continue
            place = self._shelf.lowest(lambda place: place not in keep, worth)
            if place is None:
                return False
            self._drop_image(place)
            self._prune(place)
        return size <= self.capacity

    def _drop_image(self, place: Place) -> None:
        if place.image is not None:
            self._let_go(place.image)
            place.image, place.kind = None, Kind.PATH

    def _prune(self, place: Place | None) -> None:
        """Remove a place, and those above it, that lead to no image any more."""
        while place is not None and place.image is None and not place.children:
            above = place.parent
            self._cut_off(place)
            place = above
        self._shelve(place)

    def _cut_off(self, place: Place) -> None:
        """Remove a place with all below it; the root stays."""
        if place.parent is not None:
            del place.parent.children[place.part.key(place.part.start)]
        gone = [place]
        for each in gone:
            gone += each.children.values()
            self._drop_image(each)
            if each.kv is not None:
                self._ends_no_more(each, each.kv)
                self._let_go(each.kv)
            each.parent = each.kv = None
            each.children.clear()
            self._shelf.drop(each)

    def _ends_no_more(self, place: Place, kv: Stretch) -> None:
        end = _end(kv.whole, place.frontier)
        self._ends[end].remove(place)
        if not self._ends[end]:
            del self._ends[end]

    def _let_go(self, stretch: Stretch) -> None:
        self._users[stretch.name] -= 1
        if not self._users[stretch.name]:
            del self._users[stretch.name]
            self.used -= stretch.size
            self.rubbish.append(stretch.name)

    def lose(self, stretch: Stretch) -> None:
        """Forget a file that turned out to be bad, with everything that needs it; it counts as foreign."""
        for place in [place for place in self if stretch in (place.kv, place.image)]:
            if place.image is stretch:
                self._drop_image(place)
                self._prune(place)
            elif place.parent is not None:
                above = place.parent
                self._cut_off(place)
                self._prune(above)
        if stretch.name in self.rubbish:
            self.rubbish.remove(stretch.name)
            self.add_foreign(Foreign(stretch.name, stretch.size))

    # Accounting

    def take_rubbish(self) -> list[str]:
        """Return the names of the files to remove; they are gone from here."""
        names = self.rubbish[:]
        self.rubbish.clear()
        return names

    def statistics(self) -> DiskStatistics:
        """Say how the room is spent."""
        return DiskStatistics(self.capacity, self.used, len(self._users) + len(self._foreign))
