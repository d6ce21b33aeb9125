"""Bugs to plant, so that the simulation shows that it would find them."""

from collections.abc import Callable
from typing import Any

import pytest

from storage import flush_outcomes
from storage.commit import Commit, Receipt, _Waiting
from storage.flush import FlushPlanner
from storage.flush_attempts import Attempts
from storage.flush_events import Confirm, Confirmed, Event, FailureKind, FlushSucceeded
from storage.flush_states import FlushStates
from storage.flusher import Flusher
from storage.origin_uploads import OriginUpload, OriginUploads
from storage.records import FORMAT, DirtyEntry, Flushed, Validated
from storage.types import ObjectName, Priority

Plant = Callable[[pytest.MonkeyPatch], None]


def tombstone_merged_away(patch: pytest.MonkeyPatch) -> None:
    """A delete of a put that was never sent is not sent either, as if the origin could have nothing older."""
    deletes = Attempts.deletes

    async def only_those_of_what_was_sent(
        self: Attempts, bucket: str, entries: tuple[DirtyEntry, ...], priority: Priority
    ) -> list[Event]:
        first = entries[0]
        if len(entries) == 1 and first.sequence - 1 in self._sent_etags:
            return await deletes(self, bucket, entries, priority)
        self._answers.update(dict.fromkeys((entry.sequence for entry in entries), None))
        return [FlushSucceeded(entry.sequence) for entry in entries]

    patch.setattr(Attempts, "deletes", only_those_of_what_was_sent)


def confirmed_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    """What the origin has counts as clean before the journal holds that."""

    async def confirm(self: Flusher, confirm: Confirm) -> None:
        entry = self._rows.entry(confirm.sequence)
        identity = self._parts.attempts.answer(confirm.sequence)
        self._post(Confirmed(confirm.sequence))
        if entry is not None:
            validated = Validated(self._parts.clock.wall_s(), self._parts.epoch)
            await self._commit(Flushed(FORMAT, confirm.sequence, identity, validated))
            self._parts.generations.bump(ObjectName(entry.bucket, entry.key))

    patch.setattr(Flusher, "_confirm", confirm)


def unknown_outcome_is_a_failure(patch: pytest.MonkeyPatch) -> None:
    """An attempt without an answer is taken for one that did not take effect."""
    kind = flush_outcomes._kind

    def known(error: Any) -> FailureKind:
        found = kind(error)
        return FailureKind.RETRY if found is FailureKind.UNKNOWN_OUTCOME else found

    patch.setattr(flush_outcomes, "_kind", known)


def killed_process_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a kill nobody looks whether what the process before had sent lands late."""
    made = FlushPlanner.__init__

    def forgetful(self: FlushPlanner, settings: Any, unclean_until_s: float = 0.0) -> None:
        del unclean_until_s
        made(self, settings)

    patch.setattr(FlushPlanner, "__init__", forgetful)


def acknowledged_before_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A commit is answered when its group is taken, before the journal has it."""
    take = Commit._take_group

    def answered(self: Commit) -> list[_Waiting]:
        group = take(self)
        for waiting in group:
            if not waiting.done.done():
                waiting.done.set_result(Receipt(0))
        return group

    patch.setattr(Commit, "_take_group", answered)


def older_state_is_sent(patch: pytest.MonkeyPatch) -> None:
    """A success of a state that was replaced meanwhile ends the key, as if it had been the newest."""
    go_on = FlushStates.go_on

    def end(self: FlushStates, key: Any, retry_in_s: float = 0.0) -> None:
        if retry_in_s == 0.0 and key.sent is not None and key.is_overtaken and key.entry is not None:
            self.books.drop_entry(key)
        go_on(self, key, retry_in_s)

    patch.setattr(FlushStates, "go_on", end)


def uploads_left_behind(patch: pytest.MonkeyPatch) -> None:
    """An upload of ours that nobody will complete is forgotten, and not ended at the origin."""

    def forget(self: OriginUploads, upload: OriginUpload) -> None:
        self._known.pop(upload.upload_id, None)

    patch.setattr(OriginUploads, "end", forget)


PLANTS: tuple[Plant, ...] = (
    tombstone_merged_away,
    confirmed_before_the_journal,
    unknown_outcome_is_a_failure,
    uploads_left_behind,
    killed_process_is_forgotten,
    acknowledged_before_the_journal,
    older_state_is_sent,
)
