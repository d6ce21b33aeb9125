"""What a ledger allows to be read of a key."""

import pytest

from gateway.ledger.entries import (
    FORMAT,
    Acknowledged,
    Attempt,
    Begun,
    Broken,
    Chain,
    LedgerError,
    Line,
    Refused,
    Seen,
    Unanswered,
    decode,
)
from gateway.ledger.history import ABSENT, Found, Histories, KeyHistory, judge


def put(number: int, operation: str = "put") -> Attempt:
    """An attempt whose state is told by its number."""
    return Attempt(number, "k", operation, 1.0, sha256=f"sha{number}", size=number, etag=f"etag{number}")


def found(number: int) -> Found:
    """What a GET shows of it."""
    return Found(f"sha{number}", number, f"etag{number}", str(number))


def history(*lines: Line) -> KeyHistory:
    """The key's history."""
    return Histories(lines).keys["k"]


DELETE = Attempt(2, "k", "delete", 1.0)


@pytest.mark.parametrize(
    ("lines", "read", "word"),
    [
        ([put(1), Acknowledged(1, "k")], found(1), ""),
        ([put(1), Acknowledged(1, "k")], None, "LOST"),
        ([put(1), Unanswered(1, "k", "reset")], None, ""),
        ([put(1), Unanswered(1, "k", "reset")], found(1), ""),
        ([put(1), Acknowledged(1, "k"), put(2)], found(1), ""),
        ([put(1), Acknowledged(1, "k"), put(2)], found(2), ""),
        ([put(1), Acknowledged(1, "k"), put(2), Acknowledged(2, "k")], found(1), "BACK"),
        ([put(1), Unanswered(1, "k", "503"), put(2), Acknowledged(2, "k")], found(1), "BACK"),
        ([put(1), Refused(1, "k", "403 AccessDenied")], None, ""),
        ([put(1), Refused(1, "k", "403 AccessDenied")], found(1), "REFUSED"),
        ([put(1), Acknowledged(1, "k"), put(2), Refused(2, "k", "403")], found(2), "REFUSED"),
        ([put(1), Acknowledged(1, "k"), put(2, "copy"), Refused(2, "k", "412")], found(2), "REFUSED"),
        ([put(1), Acknowledged(1, "k"), put(2), Refused(2, "k", "403")], found(1), ""),
        ([put(1), Acknowledged(1, "k"), DELETE, Refused(2, "k", "403")], None, "LOST"),
        ([put(1), Acknowledged(1, "k"), DELETE, Acknowledged(2, "k")], None, ""),
        ([put(1), Acknowledged(1, "k"), DELETE, Acknowledged(2, "k")], found(1), "BACK"),
        ([put(1), Acknowledged(1, "k"), DELETE], None, ""),
        ([put(1), Acknowledged(1, "k"), DELETE, put(3)], found(3), ""),
        ([put(1), Acknowledged(1, "k")], found(7), "FOREIGN"),
        ([put(1), Acknowledged(1, "k")], Found("sha1", 1, "etag1", ""), "FOREIGN"),
        ([put(1), Acknowledged(1, "k")], Found("other", 1, "etag1", "1"), "WRONG BYTES"),
        ([put(1), Acknowledged(1, "k")], Found("sha1", 9, "etag1", "1"), "WRONG SIZE"),
        ([put(1), Acknowledged(1, "k", "told")], Found("sha1", 1, "other", "1"), "WRONG ETAG"),
        ([put(1), Acknowledged(1, "k", "told")], Found("sha1", 1, "told", "1"), ""),
    ],
)
def test_judge_allows_the_last_acknowledged_state_and_later_attempts_only(
    lines: list[Line], read: Found | None, word: str
) -> None:
    """Whatever else is read is named by what is wrong with it."""
    _, what = judge(history(*lines), read)

    assert what.partition(":")[0] == word


def test_judge_leaves_etags_alone_when_the_origin_has_its_own() -> None:
    """Where ETags are not those of the bytes they are not compared; bytes still are."""
    key = history(put(1), Acknowledged(1, "k"))

    assert judge(key, Found("sha1", 1, "kms", "1"), compares_etag=False) == (1, "")
    assert judge(key, Found("bad", 1, "kms", "1"), compares_etag=False)[1].startswith("WRONG BYTES")


def test_what_a_check_has_seen_must_stay() -> None:
    """Once an unanswered put was not there, it may not appear any more; once it was there, it may not go."""
    absent = history(put(1), Acknowledged(1, "k"), put(2), Unanswered(2, "k", "reset"), Seen(1, "k"))
    there = history(put(1), Acknowledged(1, "k"), put(2), Unanswered(2, "k", "reset"), Seen(2, "k"))
    never = history(put(1), Unanswered(1, "k", "reset"), Seen(ABSENT, "k"))

    assert judge(absent, found(2))[1].startswith("BACK")
    assert judge(absent, found(1))[1] == ""
    assert judge(there, found(1))[1].startswith("BACK")
    assert judge(never, found(1))[1].startswith("BACK")


def test_a_copy_without_an_answer_may_land_after_a_check() -> None:
    """The origin makes copies, and does not know that the gateway was killed; the next acknowledgement ends it."""
    waiting = history(put(1), Acknowledged(1, "k"), put(2, "copy"), Seen(1, "k"))
    over = history(put(1), Acknowledged(1, "k"), put(2, "copy"), Seen(1, "k"), put(3), Acknowledged(3, "k"))

    assert judge(waiting, found(2))[1] == ""
    assert judge(over, found(2))[1].startswith("BACK")


def test_an_upload_is_known_by_the_mark_that_it_got_when_it_was_opened() -> None:
    """Its place in the order is that of its Complete, its metadata older."""
    done = Attempt(9, "k", "complete", 1.0, sha256="sha9", size=9, etag="etag9", mark="4")
    key = history(put(5), Acknowledged(5, "k"), done, Acknowledged(9, "k"))

    assert judge(key, Found("sha9", 9, "etag9", "4")) == (9, "")
    assert judge(key, found(5))[1].startswith("BACK")


def test_a_violation_shows_the_newest_history_in_order() -> None:
    """Attempts with their times, sizes and ends; the oldest are left out of a long history."""
    lines: list[Line] = [put(number) for number in range(1, 30)]
    key = history(*lines, Unanswered(28, "k", "503 SlowDown"), Acknowledged(29, "k"))

    shown = key.lines()

    assert len(shown) == 20
    assert shown[-2].endswith("put 28 bytes, sha256 sha28: 503 SlowDown")
    assert shown[-1].endswith("put 29 bytes, sha256 sha29: acknowledged")


def test_what_a_load_forgets_changes_nothing_that_is_allowed() -> None:
    """A client keeps the settled attempt and those after it."""
    key = history(put(1), Acknowledged(1, "k"), put(2), Acknowledged(2, "k"), put(3))
    allowed = key.allowed()

    key.forget_superseded()

    assert key.allowed() == allowed == [2, 3]
    assert key.current == put(2)


def test_broken_promises_of_the_load_are_kept() -> None:
    """What was seen while the load ran is reported by each check."""
    histories = Histories([Begun(FORMAT, "s3://b/p", 1), Broken("k", "upload gone")])

    assert histories.broken == [Broken("k", "upload gone")]


def test_a_ledger_that_contradicts_itself_is_refused() -> None:
    """An answer without its attempt means that lines are lost."""
    with pytest.raises(LedgerError, match="lacks attempt 2"):
        Histories([put(1), Acknowledged(2, "k")])


@pytest.mark.parametrize(
    "line",
    [
        Begun(FORMAT, "s3://b/p", 3),
        put(1),
        Acknowledged(1, "k", "e"),
        Unanswered(1, "k", "r"),
        Refused(1, "k", "r"),
        Seen(0, "k"),
        Broken("k", "w"),
    ],
)
def test_a_line_reads_as_it_was_written(line: Line) -> None:
    """Every kind of line, one JSON object each."""
    text = Chain().encode(line)

    assert text.endswith(b"\n")
    assert Chain().decode(text, "here") == line


@pytest.mark.parametrize(
    "text", [b"{}\n", b"no\n", b'{"line":"begun","format":2,"place":"s3://b/","seed":1}\n']
)
def test_a_line_that_is_none_is_refused_with_its_place(text: bytes) -> None:
    """Also one of a later format."""
    with pytest.raises(LedgerError, match=r"^here: "):
        decode(text, "here")
