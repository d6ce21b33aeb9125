"""What every road of an engine stands on: rows, segments and the door to them, and what is known of keys and buckets. Wiring only."""

from collections.abc import Callable
from dataclasses import dataclass

from storage.applier import Applier
from storage.commit import Commit
from storage.dirty_rows import DirtyRows
from storage.engine_parts import EngineParts, room_bytes_min
from storage.facts_table import FactsTable
from storage.generations import Generations
from storage.keyqueue import KeyQueue
from storage.late_landings import LateLandings
from storage.outgoing import Outgoing
from storage.pin_survey import PinSurvey
from storage.reclaim import Reclaim, ReclaimParts
from storage.recovery import Recovered
from storage.segments import SegmentStore
from storage.state import State
from storage.survivors import Survivors
from storage.types import ObjectName


@dataclass(frozen=True, slots=True)
class Ground:
    """The adapters, the recovered directory, and the components over them that all roads share.

    Attributes:
        on_failure: Is told why nothing can be written any more.
    """

    parts: EngineParts
    recovered: Recovered
    segments: SegmentStore
    on_failure: Callable[[str], None]
    state: State
    applier: Applier
    commit: Commit
    facts: FactsTable
    landings: LateLandings
    generations: Generations
    queue: KeyQueue
    dirty_rows: DirtyRows
    outgoing: Outgoing
    pins: PinSurvey
    reclaim: Reclaim

    def doubted_at_s(self, name: ObjectName) -> float:
        """Give the wall time up to which nothing that the origin said of a name is trusted."""
        return max(self.facts.doubted_at_s(name.bucket), self.landings.doubted_at_s(name))


def lay_ground(
    parts: EngineParts, recovered: Recovered, segments: SegmentStore, on_failure: Callable[[str], None]
) -> Ground:
    """Wire them. Nothing runs yet."""
    state = State()
    state.load(recovered.segments, recovered.facts, recovered.open_uploads, recovered.dirty)
    applier = Applier(recovered.index, parts.workers.index, state.absorb, on_failure=on_failure)
    applier.applied_sequence = applier.durable_sequence = recovered.applied_sequence
    commit = Commit(
        segments=segments,
        journal=recovered.journal,
        applier=applier,
        workers=parts.workers.commit,
        next_sequence=recovered.next_sequence,
        take_file_id=recovered.ids.take_segment_id,
        on_failure=on_failure,
    )
    pins = PinSurvey(recovered.index, state, parts.eviction, parts.policies, parts.workers.pool, parts.clock)
    return Ground(
        parts=parts,
        recovered=recovered,
        segments=segments,
        on_failure=on_failure,
        state=state,
        applier=applier,
        commit=commit,
        facts=FactsTable(state, parts.facts, commit, parts.clock),
        landings=LateLandings(),
        generations=Generations(),
        queue=KeyQueue(),
        dirty_rows=DirtyRows(recovered.index, state),
        outgoing=Outgoing(segments, parts.workers.pool),
        pins=pins,
        reclaim=Reclaim(
            ReclaimParts(
                segments=segments,
                state=state,
                applier=applier,
                policy=parts.eviction,
                workers=parts.workers.pool,
                clock=parts.clock,
                stats=parts.stats,
                room_bytes_min=room_bytes_min(parts.settings),
                policies=parts.policies,
                survivors=Survivors(recovered.index, segments, applier, parts.workers.pool),
                pins=pins,
            )
        ),
    )
