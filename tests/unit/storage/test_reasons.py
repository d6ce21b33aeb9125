"""`storage.reasons`: the words of x-cache-reason, and the last answers that were no plain hit."""

from storage.reasons import ANSWERS_MAX, Answer, LastAnswers, Reason, joined_reasons, waited
from storage.types import CacheResult, ObjectName


def test_reasons_are_written_once_each_when_there_are_several() -> None:
    """In the order in which they arose; without any, nothing."""
    assert joined_reasons("", Reason.VALIDATED, Reason.ABSENT, Reason.VALIDATED) == "validated; not cached"
    assert joined_reasons("", "") == ""


def test_a_wait_is_told_when_it_is_worth_a_word() -> None:
    """Every call has its turn after some microseconds."""
    assert waited(0.04) == ""
    assert waited(0.4567) == "waited 0.5 s for the limiter"


def test_the_last_answer_of_an_object_is_remembered_and_old_ones_are_forgotten() -> None:
    """Memory is bounded whatever is read."""
    answers = LastAnswers()
    name = ObjectName("b", "k")

    answers.note(name, Answer(CacheResult.MISS, "first", 1.0))
    for number in range(ANSWERS_MAX - 1):
        answers.note(ObjectName("b", f"k{number}"), Answer(CacheResult.MISS, "", 2.0))
    answers.note(name, Answer(CacheResult.BYPASS, "second", 3.0))
    answers.note(ObjectName("b", "last"), Answer(CacheResult.MISS, "", 4.0))

    assert len(answers) == ANSWERS_MAX
    assert answers.find(name) == Answer(CacheResult.BYPASS, "second", 3.0)
    assert answers.find(ObjectName("b", "k0")) is None
