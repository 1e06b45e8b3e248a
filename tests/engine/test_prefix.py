"""The tree of retained histories against a plain list of them: matches, pages, ledger."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer.engine.device import HostDrop, HostSave, Unit
from ninfer.engine.host import Host
from ninfer.engine.identity import Identity, identify
from ninfer.engine.pages import Pool
from ninfer.engine.prefix import Kind, Node, Tree, table
from ninfer.engine.retention import Retention
from ninfer.prompt.prepared import MediaSpan, Prepared
from ninfer.settings import ContextCosts

PAGE = 3
histories = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)


def text(ids: tuple[int, ...]) -> Identity:
    return identify(Prepared(ids, False))


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Retained(RuleBasedStateMachine):
    """Insert, give up, spill and bring back at random; ``content`` says what each page really holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pages, self.slots, self.host = Pool(60), Pool(6), Host(40, 10, 1)
        self.tree = Tree(PAGE, self.pages, self.slots, self.host)
        self.retention = Retention(self.tree, ContextCosts(0.0, 1e9, 1.0, 0.0))
        self.ids: dict[int, tuple[int, ...]] = {}  # node id -> its whole history
        self.content: dict[int, list[int | None]] = {}
        self.blobs: dict[int, list[list[int | None]]] = {}
        self.nodes: dict[int, Node] = {}

    def obey(self, units: list[Unit]) -> None:
        """Do what the host units say to the contents."""
        for unit in units:
            if isinstance(unit, HostSave):
                self.blobs[unit.key] = [list(self.content[page]) for page in unit.pages]
            elif isinstance(unit, HostDrop):
                del self.blobs[unit.key]

    def whole(self, node: Node) -> tuple[int, ...]:
        ids = b"".join(each.part.ids for each in node.path())
        return tuple(int.from_bytes(ids[i : i + 4], "little") for i in range(0, len(ids), 4))

    @rule(ids=histories, kind=st.sampled_from([Kind.ENDPOINT, Kind.INTERVAL, Kind.JUNCTION]))
    def insert(self, ids: tuple[int, ...], kind: Kind) -> None:
        units: list[Unit] = []
        count = -(-len(ids) // PAGE)
        self.retention.free_pages(count, units)
        pages = self.pages.take(count)
        self.obey(units)
        if pages is None:
            return
        for index, page in enumerate(pages):
            chunk = ids[index * PAGE : (index + 1) * PAGE]
            self.content[page] = [*chunk, *[None] * (PAGE - len(chunk))]
        units = []
        node = self.tree.insert(text(ids), pages, units)
        if not node.checkpoint:
            node.kind = kind
            with self.retention.pin(node):  # as the cache does: what makes room may take a bare leaf
                free = self.retention.free_slot(units, self.retention.image_worth(node))
            if free:
                (node.slot,) = self.slots.take(1) or (-1,)
                self.slots.keep((node.slot,))
                self.slots.release((node.slot,))
        for each in self.tree:
            self.retention.shelve(each)
        self.retention.prune(node, units)
        self.obey(units)
        self.pages.release(pages)

    @rule(count=st.integers(1, 60))
    def need_pages(self, count: int) -> None:
        units: list[Unit] = []
        idle = self.pages.idle
        self.retention.free_pages(count, units)
        assert self.pages.free >= min(count, 60) or (self.pages.idle == 0 and idle >= 0)
        self.obey(units)

    @rule()
    def need_a_slot(self) -> None:
        units: list[Unit] = []
        assert self.retention.free_slot(units)
        self.obey(units)

    @precondition(lambda self: any(not node.on_device for node in self.tree))
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        hosted = [
            n for n in self.tree if not n.on_device and (n.parent is self.tree.root or n.parent.on_device)
        ]
        node = data.draw(st.sampled_from(hosted))
        count = -(-node.frontier // PAGE) - node.part.start // PAGE
        pages = self.pages.take(count)
        if pages is None or node.blob is None:
            return
        for index, page in enumerate(pages):
            self.content[page] = list(self.blobs[node.blob.key][node.offset + index])
        units: list[Unit] = []
        self.tree.place(node, pages, units)
        self.pages.release(pages)
        self.obey(units)
        self.retention.shelve(node)
        self.retention.shelve(node.parent)

    @rule(ids=histories)
    def match(self, ids: tuple[int, ...]) -> None:
        found = self.tree.match(text(ids))
        retained = [self.whole(node) for node in self.tree]
        assert found.common == max((common(ids, other) for other in retained), default=0)
        for node in found.nodes:
            assert self.whole(node) == ids[: node.frontier]

    @invariant()
    def books_agree(self) -> None:
        pages, slots, blobs = self.tree.claims()
        self.pages.check([], pages)
        self.slots.check([], slots)
        self.host.check(blobs)
        assert set(self.blobs) == {blob.key for blob in blobs}

    @invariant()
    def paths_lead_somewhere_and_hold_their_tokens(self) -> None:
        for node in self.tree:
            assert node.checkpoint or node.children
            assert node.warm == sum(child.on_device for child in node.children.values())
            assert node.on_device or not node.warm
            if node.on_device:
                self.read(node)

    def read(self, node: Node) -> None:
        ids = self.whole(node)
        pages = table(tuple(node.path()), PAGE)
        assert len(pages) == -(-len(ids) // PAGE)
        for index, token in enumerate(ids):
            assert self.content[pages[index // PAGE]][index % PAGE] == token

    @invariant()
    def shelves_hold_exactly_what_can_be_given_up(self) -> None:
        nodes = list(self.tree)
        shelf = self.retention
        assert {n for n in nodes if n.on_device and n.leaf} <= set(shelf.leaves) <= set(nodes)
        assert set(shelf.images) == {n for n in nodes if n.slot >= 0}
        assert {n for n in nodes if n.image} == {n for n, is_kv in shelf.hosted if not is_kv}


Retained.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestRetained = Retained.TestCase


# Identity

spans = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 1)), max_size=3)


def pictured(layout: list[tuple[int, int, int]], shifted: bool) -> tuple[Prepared, list[object]]:
    """Build a prompt of text gaps and pictures, and the plain list of what identifies each token."""
    ids: list[int] = []
    media, plain = [], []
    for gap, size, digest in layout:
        ids += [1] * gap
        span = MediaSpan(bytes([digest]), (1, size, 1), ((len(ids), size),))
        media.append(span)
        ids += [2] * size
    ids += [1]
    axis = tuple(i + (1 if shifted and i > 3 else 0) for i in range(len(ids)))
    for index, token in enumerate(ids):
        item = next((s for s in media if s.start <= index < s.stop), None)
        plain.append((token, axis[index], item and (item.start, item.stop, item.digest, item.grid)))
    prepared = Prepared(tuple(ids), False, (axis, axis, axis), 0, tuple(media))
    return prepared, plain


@given(spans, spans, st.booleans(), st.booleans(), st.data())
def test_histories_agree_exactly_as_far_as_all_that_identifies_their_tokens(a, b, shift_a, shift_b, data):
    (one, plain_one), (two, plain_two) = pictured(a, shift_a), pictured(b, shift_b)
    expected = common(tuple(plain_one), tuple(plain_two))
    for span in (*one.media, *two.media):
        if span.start < expected < span.stop:
            expected = span.start
    whole, other = identify(one), identify(two)
    assert whole.agrees(other) == other.agrees(whole) == expected
    if expected:
        legal = [i for i in range(expected) if not any(s.start < i < s.stop for s in one.media)]
        start = data.draw(st.sampled_from(legal))
        assert whole.part(start, whole.stop).agrees(other) == expected
        assert whole.key(start) == other.key(start)
    if expected < min(len(whole), len(other)):
        assert whole.key(expected) != other.key(expected)


@given(st.lists(st.integers(0, 3), max_size=30).map(tuple), st.integers(-3, 3))
def test_generated_tokens_extend_an_identity_as_if_they_had_been_prompt(tail, delta):
    ids = (5, 6, 7)
    axis = tuple(i + delta for i in range(3))
    longer = tuple(i + delta for i in range(3 + len(tail)))
    short = identify(Prepared(ids, False, (axis,) * 3, delta)).extended(tail, delta)
    long = identify(Prepared(ids + tail, False, (longer,) * 3, delta))
    assert (short.ids, short.shape or bytes(16 * len(short))) == (
        long.ids,
        long.shape or bytes(16 * len(long)),
    )


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=300), st.data())
def test_the_first_difference_is_found_wherever_it_is(ids, data):
    at = data.draw(st.integers(0, len(ids) - 1))
    changed = [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
    assert text(tuple(ids)).agrees(text(tuple(changed))) == at
