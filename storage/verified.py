"""Which bytes of a location may be served: each block is held against its checksum before its first serving in this process."""

from storage.filesystem import File
from storage.segments import SegmentStore
from storage.types import BLOCK_BYTES, Location
from storage.workers import Workers


async def verified(
    segments: SegmentStore, workers: Workers, location: Location, start: int, stop: int, *, is_trusted: bool
) -> tuple[int, File]:
    """Say up to where the bytes of a location from `start` on are right, at most to `stop`, and of which file.

    Offsets count from the location's start. What is known to be right is given first, the next call checks the next block. No further
    than `start`: the block of `start` is wrong. Without `is_trusted` it is checked however often it was before.

    Raises:
        SegmentGoneError, DiskFailedError: It cannot be read.
    """
    known = _known_stop(segments, location, start, stop) if is_trusted else 0
    stop = known or await _check(segments, workers, location, start, stop)
    return stop, segments.reader(location.segment_id)


def _known_stop(segments: SegmentStore, location: Location, start: int, stop: int) -> int:
    """Say up to where the bytes from `start` are known to be right; 0 where the first block is to be checked."""
    first = start // BLOCK_BYTES
    for block in range(first, -(-stop // BLOCK_BYTES)):
        if not segments.is_verified(location, block):
            return block * BLOCK_BYTES if block > first else 0
    return stop


async def _check(segments: SegmentStore, workers: Workers, location: Location, start: int, stop: int) -> int:
    """Check the block of `start`: up to where it is right; 0 where it is wrong."""
    block = start // BLOCK_BYTES
    is_right = await workers.run(segments.verify_block, location, block)
    return min(stop, (block + 1) * BLOCK_BYTES) if is_right else 0
