"""The index: rows in RocksDB, and the only module that knows rocksdict.

What is promised. A batch becomes visible whole, over all families, or not at all. It is durable once `checkpoint()` has
returned; a power cut before that leaves the rows as of some batch at or after the last checkpoint, never half a batch and never a
later batch without an earlier one: all families share one write-ahead log (WAL), recovery stops at its first damaged record, and
RocksDB syncs the older logs before a flushed memtable of one family counts. A killed process loses nothing, as the log is in the
page cache.

Which thread. `get` and `scan` are called in the event loop while the one writer thread is in `write` or `checkpoint`; RocksDB
allows it. `get`, `scan` and `write` hold the interpreter lock, which is bearable since none of them waits for the disk in the
ordinary case: a batch is never written with `sync=True`, which would hold the lock for the whole fsync (measured: the loop's lag
is the sync time). `checkpoint` releases it.

Traps of rocksdict 0.3, all tried:
- Keys and values are typed unless every Options and every WriteBatch says raw mode; a database opened in the other mode looks
  fine and is wrong.
- `ReadOptions.set_iterate_lower_bound` sets the *upper* bound. Only the upper one is used here.
- A family's handle keeps the database open: all must be closed, or the next open finds it locked.
- A database opened for reading still gets a file of rocksdict's own written beside it.
- Every failure is a plain Exception; what RocksDB means stands at the beginning of its text.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from storage.errors import DamagedError, DiskFailedError, LockedError, StorageError, UnknownOutcomeError
from storage.family import Family, IndexWrite
from storage.types import KIB, MIB

__all__ = ["Family", "Index", "IndexWrite", "RocksIndex"]

WRITE_BUFFERS_BYTES_MAX: Final = 48 * MIB
"""All families' memtables together; with RocksDB's defaults ten families may hold 1.25 GiB."""

WRITE_BUFFER_BYTES: Final = 32 * MIB
"""One family's memtable; below the bound of all, so that a busy family is written out before it presses on the others."""

WAL_BYTES_MAX: Final = 64 * MIB
"""A larger log makes RocksDB write out the family that holds its oldest records; bounds the replay at a start."""

BLOCK_CACHE_BYTES: Final = 64 * MIB
"""Shared by all families; holds data, index and filter blocks, so that no table's index lives outside the bound."""

OPEN_FILES_MAX: Final = 256
"""Table files kept open; at 32 MiB or more each, that is over 8 GiB of index before one is reopened."""

BACKGROUND_JOBS_MAX: Final = 2
BLOOM_BITS_A_KEY: Final = 10
"""About 1 % false positives; saves the disk read for a key that is not cached."""

INFO_LOG_BYTES_MAX: Final = MIB
INFO_LOG_FILES_MAX: Final = 2

_WRAPPER_FILE: Final = "rocksdict-config.json"


class Index(Protocol):
    """Rows in families, sorted by key."""

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes, None where there is none. Cheap enough for the event loop.

        Raises:
            DamagedError: The row is there and cannot be read.
            DiskFailedError: The disk refused the read.
        """
        ...

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give up to `limit` rows with `start <= key < stop` in key order, from the end where `reverse`.

        `stop` None means to the family's end. Shows one state of the index: a batch written meanwhile is in it whole or not at
        all. Costs about 2 us a row. Errors as get.
        """
        ...

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch, whole or not at all; visible on return, durable at the next checkpoint.

        A key named twice gets what is said last. Called by one thread at a time.

        Raises:
            DiskFailedError: Nothing of the batch is visible; whether it shows after a restart is unknown.
        """
        ...

    def checkpoint(self) -> None:
        """Make all batches written before the call durable. Blocks for a sync; another thread may write meanwhile.

        Raises:
            UnknownOutcomeError: Nothing is known about the batches since the last checkpoint that succeeded.
        """
        ...

    def close(self) -> None:
        """Release the database, without a checkpoint; nothing else is called afterwards. Closing twice is allowed."""
        ...


class RocksIndex:
    """The index in a RocksDB database, one column family for each Family.

    Made by `open`.
    """

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self._families = {family: database.get_column_family(family.value) for family in Family}
        self._handles = {family: database.get_column_family_handle(family.value) for family in Family}
        self._is_closed = False
        # Bound once: the lookup of the method is a tenth of a get.
        self._gets: dict[Family, Callable[[bytes], bytes | None]] = {
            family: column.get for family, column in self._families.items()
        }

    @classmethod
    def open(cls, path: str) -> "RocksIndex":
        """Open the database in directory `path`, creating it and its families where they are missing.

        Raises:
            DamagedError: What is there is no readable index: it may be destroyed and rebuilt from the journal.
            LockedError: Another process, or an index of this one that is not closed, has it open.
            DiskFailedError: The disk refused; the index itself may be good.
        """
        cache = Cache(BLOCK_CACHE_BYTES)
        try:
            database = Rdict(
                path, _options(cache), {family.value: _options(cache, family) for family in Family}
            )
        except Exception as error:
            raise _open_error(path, str(error)) from error
        return cls(database)

    @classmethod
    def open_read_only(cls, path: str, links: str) -> "RocksIndex":
        """Open the database in directory `path` for reading; nothing is written there.

        rocksdict writes a file of its own beside a database even where it only reads. So the database is opened in `links`, an
        empty directory of the caller's, through symbolic links; the caller removes it after `close`. Errors as open.
        """
        try:
            for file in Path(path).iterdir():
                link = Path(links) / file.name
                if file.name == _WRAPPER_FILE:
                    shutil.copy(file, link)
                else:
                    link.symlink_to(file.resolve())
        except FileNotFoundError as error:
            raise DamagedError(f"there is no index {path}") from error
        except OSError as error:
            raise DiskFailedError(f"index {path} cannot be read: {error}") from error
        cache = Cache(BLOCK_CACHE_BYTES)
        try:
            database = Rdict(
                links,
                _options(cache),
                {family.value: _options(cache, family) for family in Family},
                access_type=AccessType.read_only(error_if_log_file_exist=False),
            )
        except Exception as error:
            raise _open_error(path, str(error)) from error
        return cls(database)

    @staticmethod
    def destroy(path: str) -> None:
        """Remove the database in directory `path`, whatever state it is in; it may be absent. Not durable by itself.

        The caller holds the cache directory's lock: RocksDB's own is not asked. A power cut in between leaves a part of the
        database, which does not open.

        Raises:
            DiskFailedError: Something of it could not be removed.
        """
        try:
            if Path(path).exists():
                shutil.rmtree(path)
        except OSError as error:
            raise DiskFailedError(f"index {path} cannot be removed: {error}") from error

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes; as Index."""
        try:
            return self._gets[family](key)
        except Exception as error:
            raise _read_error(error) from error

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows in key order; as Index."""
        if stop is not None and stop <= start:
            return []
        with _reads():
            # The upper bound keeps RocksDB from walking on over the tombstones of rows behind the range.
            options = ReadOptions()
            if stop is not None:
                options.set_iterate_upper_bound(stop)
            rows = self._families[family].iter(options)
            return _backwards(rows, start, limit) if reverse else _forwards(rows, start, limit)

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch; as Index."""
        assert not self._is_closed, "the index is closed"
        rocks = WriteBatch(raw_mode=True)
        for family, key, value in batch:
            if value is None:
                rocks.delete(key, self._handles[family])
            else:
                rocks.put(key, value, self._handles[family])
        try:
            self._database.write(rocks)
        except Exception as error:
            raise DiskFailedError(f"index write failed: {error}") from error

    def checkpoint(self) -> None:
        """Sync the write-ahead log; as Index."""
        assert not self._is_closed, "the index is closed"
        try:
            self._database.flush_wal(sync=True)
        except Exception as error:
            raise UnknownOutcomeError(f"index sync failed: {error}") from error

    def close(self) -> None:
        """Release the database; as Index."""
        if self._is_closed:
            return
        self._is_closed = True
        self._handles.clear()
        for database in (*self._families.values(), self._database):
            # rocksdict writes the memtable out on close; what fails to be written is in the log all the same.
            with suppress(Exception):
                database.close()


def _forwards(rows: RdictIter, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    rows.seek(start)
    while len(found) < limit and rows.valid():
        found.append((rows.key(), rows.value()))
        rows.next()
    rows.status()  # an iterator that met an error is merely not valid any more
    return found


def _backwards(rows: RdictIter, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    rows.seek_to_last()  # below the upper bound
    while len(found) < limit and rows.valid():
        key = rows.key()
        if key < start:
            break
        found.append((key, rows.value()))
        rows.prev()
    rows.status()
    return found


def _options(cache: Cache, family: Family | None = None) -> Options:
    """Make the options of the database and of each of its families; RocksDB takes from each what concerns it."""
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_db_write_buffer_size(WRITE_BUFFERS_BYTES_MAX)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_file_opening_threads(BACKGROUND_JOBS_MAX)
    options.set_max_background_jobs(BACKGROUND_JOBS_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOG_FILES_MAX)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_block_based_table_factory(_table_options(cache, family))
    return options


def _table_options(cache: Cache, family: Family | None) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(4 * KIB)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if family is Family.OBJECTS:
        table.set_bloom_filter(BLOOM_BITS_A_KEY, block_based=False)
    return table


@contextmanager
def _reads() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _read_error(error) from error


def _read_error(error: Exception) -> Exception:
    """Say what a failed read means: a bug of the caller, or by how RocksDB's text begins."""
    if isinstance(error, DbClosedError):
        return AssertionError("the index is closed")
    if isinstance(error, KeyError | TypeError | ValueError):
        return error
    if str(error).startswith("Corruption"):
        return DamagedError(f"index row cannot be read: {error}")
    return DiskFailedError(f"index read failed: {error}")


def _open_error(path: str, text: str) -> StorageError:
    """Say what a failed open means.

    All but two kinds say that the files contradict each other; a missing table or manifest is among them though RocksDB calls it
    an IO error. A lock or a full or failing disk says nothing against the index.
    """
    if "lock" in text and text.startswith("IO error"):
        return LockedError(f"index {path} is open already: {text}")
    is_refusal = text.startswith("IO error") and "No such file" not in text
    if is_refusal or "(os error" in text:  # the second from rocksdict itself, which keeps a file of its own
        return DiskFailedError(f"index {path} cannot be opened: {text}")
    return DamagedError(f"index {path} is damaged: {text}")
