"""Pausing residents when memory is short, and bringing them back without anyone noticing.

Owns who is paused and when a paused request may return.  Promises: only younger residents are paused
for an older one; a return happens in order of age and only with room for the old frontier and one new
unit (the *recovery permit*); what has just been brought back is not paused before it has committed
something, and while it recovers older residents already have the pages they will need.

The one thing a reader would get wrong: a pause never interrupts a unit.  A resident with units in
flight is left alone until they have landed, so its frontier and its tokens agree.
"""

from __future__ import annotations

import attrs

from ninfer.engine.cycle import Cycle, settle
from ninfer.engine.device import Unit
from ninfer.engine.memory import Memory
from ninfer.engine.roster import Roster
from ninfer.engine.sequence import FEEDING, Sequence, State
from ninfer.engine.stats import Counters


@attrs.frozen
class Recovery:
    """``chunk`` bounds the tokens of a feeding unit, ``stride`` those that a row may add in one round."""

    memory: Memory
    roster: Roster
    counters: Counters
    chunk: int
    stride: int

    # Pause

    def relieve(self, seq: Sequence, units: list[Unit]) -> bool:
        """Free pages for ``seq`` at the cost of younger requests: snapshots first, then a resident."""
        if self.memory.snapshots.revoke_younger(seq, units, holding=True) is not None:
            return True
        for victim in reversed(self.roster.residents):
            if victim.order <= seq.order:
                return False
            if not victim.recovering:
                return not victim.flying and self._pause(victim, units)
        return False

    def _pause(self, seq: Sequence, units: list[Unit]) -> bool:
        """Give up the device state of a resident, to the host if it fits and pays."""
        self.roster.tell(seq, "pause_started")
        settle(seq, units)
        saved = self.memory.snapshots.save(seq, units)
        self.roster.lay_off(seq)
        self.memory.space.release(seq)
        seq.frontier = 0
        seq.move(State.PAUSED)
        seq.tally.preemptions += 1
        self.counters.preemptions += 1
        self.roster.tell(seq, "paused", "snapshot" if saved else "replay")
        return True

    def tell_revoked(self) -> None:
        """Report the snapshots that were revoked since the last call."""
        revoked = self.memory.snapshots.revoked
        for seq in revoked:
            self.roster.tell(seq, "snapshot_revoked", "replay")
        revoked.clear()

    # Return

    def restore(self, cycle: Cycle) -> None:
        """Bring paused requests back, oldest first, as far as they are permitted."""
        paused = self.roster.paused
        while paused and self.memory.space.lanes and self._permitted(paused[0], cycle.before):
            self._resume(paused.pop(0), cycle)

    def _permitted(self, seq: Sequence, units: list[Unit]) -> bool:
        """Whether ``seq`` can rebuild its frontier and run one unit while older ones go on."""
        if not self.roster.residents:
            return True
        older = self.roster.older(seq)
        if self._must_feed(seq) and any(other.state in FEEDING for other in older):
            return False  # its own feeding would wait behind theirs
        memory = self.memory
        short = self._needs(seq, older) - memory.available
        if 0 < short <= memory.snapshots.held_by_younger(seq):
            while short > 0 and memory.snapshots.revoke_younger(seq, units, holding=True):
                short = self._needs(seq, older) - memory.available
        return short <= 0

    def _must_feed(self, seq: Sequence) -> bool:
        """Whether a return takes chunks, and not just a copy and a decode row."""
        decodes = seq.reached >= seq.prompt_tokens and seq.outputs and not seq.must_steer()
        return not (decodes and seq in self.memory.snapshots.kept)

    def _needs(self, seq: Sequence, older: list[Sequence]) -> int:
        ahead = self._cycles(seq)
        pages = self.memory.needs(seq, seq.reached, self._first_unit(seq))
        return pages + sum(self.memory.space.missing(other, self._after(other, ahead)) for other in older)

    def _first_unit(self, seq: Sequence) -> int:
        """Return the frontier that the first new unit of a paused request reaches."""
        if seq.reached < seq.prompt_tokens:
            return min(seq.reached + self.chunk, seq.prompt_tokens)
        if seq.must_steer():
            return seq.known + len(seq.control)
        # A row takes all pages of its drafts or none: with fewer it would wait for them, unpausable.
        return min(seq.reached + self.stride, self.memory.space.geometry.max_context)

    def _cycles(self, seq: Sequence) -> int:
        """Bound the cycles that a return takes, others' control units and run-ahead included."""
        known = seq.reached if seq in self.memory.snapshots.kept else 0
        return (seq.reached - known) // self.chunk + 3 + self.memory.space.geometry.lanes

    def _after(self, seq: Sequence, cycles: int) -> int:
        """Bound where a resident will stand after so many cycles."""
        step = self.chunk if seq.state in FEEDING else self.stride
        return min(seq.frontier + cycles * step, self.memory.space.geometry.max_context)

    def _resume(self, seq: Sequence, cycle: Cycle) -> None:
        """Take a lane again, with all pages that rebuilding and one unit need."""
        units, since = cycle.before, len(cycle.before)
        cycles = self._cycles(seq)
        snapshot = self._has_loadable(seq, units)
        self.roster.tell(seq, "restore_started", "snapshot" if snapshot else "replay")
        source = None if snapshot else self.memory.affordable_source(seq, seq.reached)
        self.memory.take_lane(seq, source, units)
        self.roster.settle_in(seq)
        for other in self.roster.older(seq):
            self.memory.grow(other, self._after(other, cycles), units)
        self.memory.grow(seq, self._first_unit(seq), units)
        self._note(seq, snapshot)
        if cycle.waits(seq, since):
            seq.move(State.RESTORING)
        else:
            self.restored(seq)

    def _has_loadable(self, seq: Sequence, units: list[Unit]) -> bool:
        """Whether ``seq`` has a snapshot that fits; one that does not is revoked."""
        shot = self.memory.snapshots.kept.get(seq)
        if shot is not None and shot.blob.pages > self.memory.available:
            self.memory.snapshots.revoke(seq, units)
        return seq in self.memory.snapshots.kept

    def _note(self, seq: Sequence, snapshot: bool) -> None:
        seq.recovering, seq.replay_stop = True, seq.reached
        seq.route = "snapshot" if snapshot else "replay"
        seq.tally.snapshot_restores += snapshot
        seq.tally.replay_restores += not snapshot
        self.counters.snapshot_restores += snapshot
        self.counters.replay_restores += not snapshot

    # Progress

    def restored(self, seq: Sequence) -> None:
        """Go on from the state that is back."""
        seq.move(seq.resumes_as())
        if seq.recovering:
            self.roster.tell(seq, "restored", seq.route)

    def replayed(self, seq: Sequence, frontier: int) -> None:
        """Hear that a replay has reached ``frontier``."""
        if frontier == seq.replay_stop:
            self.roster.tell(seq, "replay_complete", seq.route)

    def committed(self, seq: Sequence) -> None:
        """Hear that something new has been committed."""
        if seq.recovering:
            seq.recovering = False
            self.roster.tell(seq, "recovery_complete", seq.route)
