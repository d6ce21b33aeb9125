"""The road of a write: what is acknowledged from the disk, and what is passed through to the origin. Wiring only."""

from dataclasses import dataclass

from storage.backlog import Backlog
from storage.conditional_completes import ConditionalCompletes, ConditionalCompletesParts
from storage.conditional_writes import ConditionalWrites
from storage.flush_road import FlushRoad
from storage.ground import Ground
from storage.intake import HeldBodies, Inlet
from storage.passing import Passing, PassingParts
from storage.pointers import Pointers
from storage.relay import Relay, RelayParts
from storage.removal_probe import RemovalProbe
from storage.through import Through
from storage.uploads import Uploads, UploadsParts
from storage.writer import Writer, WriterParts


@dataclass(frozen=True, slots=True)
class WriteRoad:
    """The components of writes."""

    pointers: Pointers
    through: Through
    backlog: Backlog
    writer: Writer
    uploads: Uploads
    passing: Passing
    relay: Relay


def lay_write_road(ground: Ground, flush: FlushRoad) -> WriteRoad:
    """Wire them. Nothing runs yet."""
    parts, recovered = ground.parts, ground.recovered
    pointers = Pointers(
        origin=parts.origin,
        commit=ground.commit,
        clock=parts.clock,
        policies=parts.policies,
        journaled=recovered.pointers,
    )
    through = Through(
        queue=ground.queue,
        generations=ground.generations,
        applier=ground.applier,
        commit=ground.commit,
        flusher=flush.flusher,
        policies=parts.policies,
        check_writable=pointers.check_writable,
        landings=ground.landings,
        wall_s=parts.clock.wall_s,
    )
    backlog = Backlog(
        ground.state,
        dirty_bytes_limit=parts.settings.dirty_bytes_limit,
        wait_s_max=parts.settings.dirty_wait_s,
    )
    held = HeldBodies()
    inlet = Inlet(ground.segments, parts.workers.pool, ground.reclaim, parts.clock, ground.on_failure)
    conditional = ConditionalWrites(parts.origin, ground.dirty_rows.version)
    return WriteRoad(
        pointers=pointers,
        through=through,
        backlog=backlog,
        writer=Writer(
            WriterParts(
                inlet=inlet,
                commit=ground.commit,
                applier=ground.applier,
                backlog=backlog,
                queue=ground.queue,
                generations=ground.generations,
                facts=ground.facts,
                conflicts=flush.conflicts,
                conditional=conditional,
                through=through,
                origin=parts.origin,
                policies=parts.policies,
                ids=recovered.ids,
                clock=parts.clock,
                workers=parts.workers.pool,
                held=held,
                outgoing=ground.outgoing,
                check_writable=pointers.check_writable,
                epoch=recovered.epoch,
            )
        ),
        uploads=Uploads(
            UploadsParts(
                index=recovered.index,
                inlet=inlet,
                commit=ground.commit,
                backlog=backlog,
                queue=ground.queue,
                generations=ground.generations,
                facts=ground.facts,
                conflicts=flush.conflicts,
                conditional=ConditionalCompletes(
                    ConditionalCompletesParts(
                        index=recovered.index,
                        through=through,
                        conditional=conditional,
                        sender=flush.sender,
                        outgoing=ground.outgoing,
                        uploads=flush.origin_uploads,
                        early=flush.early,
                        commit=ground.commit,
                        clock=parts.clock,
                    )
                ),
                policies=parts.policies,
                ids=recovered.ids,
                clock=parts.clock,
                workers=parts.workers.pool,
                instance_id=recovered.layout.instance_id.hex()[:8],
                epoch=recovered.epoch,
                draw_bits=parts.rng.getrandbits,
                check_writable=pointers.check_writable,
                through=through,
                dirty_rows=ground.dirty_rows,
            )
        ),
        passing=Passing(
            PassingParts(
                origin=parts.origin,
                control=parts.control,
                through=through,
                conditional=conditional,
                flusher=flush.flusher,
                facts=ground.facts,
                held=held,
                workers=parts.workers.pool,
                wall_s=parts.clock.wall_s,
            )
        ),
        relay=Relay(
            RelayParts(
                origin=parts.origin,
                removals=RemovalProbe(parts.origin, parts.rng),
                through=through,
                flusher=flush.flusher,
                facts=ground.facts,
                generations=ground.generations,
                held=held,
                wall_s=parts.clock.wall_s,
            )
        ),
    )
