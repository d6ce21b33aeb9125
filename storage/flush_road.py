"""The road of a flush: what brings acknowledged changes to the origin, and parts of open uploads before. Wiring only."""

from dataclasses import dataclass

from storage.condition_probe import ConditionProbe
from storage.conflicts import Conflicts, ConflictsParts
from storage.early_flush import EarlyFlushPlanner, may_travel
from storage.early_flusher import EarlyFlusher, EarlyFlusherParts
from storage.engine_parts import EngineParts
from storage.flush import FlushPlanner
from storage.flush_attempts import Attempts, AttemptsParts
from storage.flusher import Flusher, FlusherParts
from storage.ground import Ground
from storage.guarded import GuardedSends
from storage.origin_uploads import OriginUploads, OriginUploadsParts
from storage.recovery import Recovered
from storage.rows import read_extents
from storage.sender import Sender, SenderParts
from storage.unreadable import Unreadable


@dataclass(frozen=True, slots=True)
class FlushRoad:
    """The components of the flush."""

    unreadable: Unreadable
    origin_uploads: OriginUploads
    sender: Sender
    conflicts: Conflicts
    probe: ConditionProbe
    planner: FlushPlanner
    flusher: Flusher
    early_planner: EarlyFlushPlanner
    early: EarlyFlusher


def lay_flush_road(ground: Ground) -> FlushRoad:
    """Wire them. Nothing runs yet."""
    parts, recovered = ground.parts, ground.recovered
    unreadable = Unreadable(parts.stats)
    origin_uploads = OriginUploads(
        OriginUploadsParts(
            parts.origin, ground.commit, parts.clock, parts.rng, parts.settings.flush.origin_timeout_s
        )
    )
    sender = Sender(
        SenderParts(
            parts.origin,
            ground.outgoing,
            origin_uploads,
            lambda record: read_extents(recovered.index, record),
        )
    )
    conflicts = Conflicts(
        ConflictsParts(
            rows=ground.dirty_rows,
            origin=parts.origin,
            policies=parts.policies,
            clock=parts.clock,
            epoch=recovered.epoch,
            trusted_epoch=recovered.trusted_epoch,
            doubted_at_s=ground.doubted_at_s,
        )
    )
    probe = ConditionProbe(parts.origin, parts.policies, parts.rng)
    guarded = GuardedSends(conflicts, sender, parts.origin, probe)
    planner = _planner(parts, recovered)
    flusher = Flusher(
        FlusherParts(
            planner=planner,
            attempts=Attempts(
                AttemptsParts(
                    ground.dirty_rows,
                    guarded,
                    parts.origin,
                    ground.facts,
                    parts.rng,
                    parts.stats,
                    unreadable,
                )
            ),
            rows=ground.dirty_rows,
            sender=sender,
            policies=parts.policies,
            uploads=origin_uploads,
            commit=ground.commit,
            applier=ground.applier,
            queue=ground.queue,
            generations=ground.generations,
            clock=parts.clock,
            rng=parts.rng,
            stats=parts.stats,
            epoch=recovered.epoch,
        )
    )
    early_planner = EarlyFlushPlanner(parts.settings.early_flush)
    early = EarlyFlusher(
        EarlyFlusherParts(
            planner=early_planner,
            index=recovered.index,
            outgoing=ground.outgoing,
            uploads=origin_uploads,
            clock=parts.clock,
            rng=parts.rng,
            stats=parts.stats,
            may_send=lambda name: may_travel(
                parts.policies().find(name), suspension=planner.suspension_of(name.bucket)
            ),
            is_pressed=planner.is_pressed,
        )
    )
    return FlushRoad(
        unreadable=unreadable,
        origin_uploads=origin_uploads,
        sender=sender,
        conflicts=conflicts,
        probe=probe,
        planner=planner,
        flusher=flusher,
        early_planner=early_planner,
        early=early,
    )


def _planner(parts: EngineParts, recovered: Recovered) -> FlushPlanner:
    """After an unclean stop, attempts of the process before may land until the origin's time-out has passed."""
    unclean_until_s = 0.0
    if recovered.is_unclean:
        unclean_until_s = parts.clock.monotonic_s() + parts.settings.flush.origin_timeout_s
    return FlushPlanner(parts.settings.flush, unclean_until_s=unclean_until_s)
