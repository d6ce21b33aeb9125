"""Version ids under a published target: those of the objects that it shows, and of no others."""

from pathlib import Path

from tests.fakes.publishing import TARGET, publish, target
from tests.fakes.running_engine import BUCKET
from tests.integration.test_relay import TAGS, whole


async def test_a_version_id_under_a_target_is_one_of_the_source_that_is_shown(tmp_path: Path) -> None:
    """Older versions of the source are read; those of another source are none of this object's (AWS "Error responses")."""
    async with whole(tmp_path, questions=None) as it:
        store = it.running.origin.store
        store.buckets[BUCKET].versioning = "Enabled"
        target(it.running)
        ids = {
            body: store.put(
                BUCKET, f"staging/{body[:3]}/k", body.encode(), x_amz_tagging=f"of={body}"
            ).version_id
            for body in ("one-old", "one-new", "two-new")
        }
        at = {body: f"/{BUCKET}/{TARGET}k?versionId={version_id}" for body, version_id in ids.items()}
        assert (await publish(it.running, "one")).phase == "done"

        old, new = await it.ask("GET", at["one-old"]), await it.ask("GET", at["one-new"])
        head = await it.ask("HEAD", at["one-old"])
        tags = await it.ask("GET", f"{at['one-old']}&tagging")
        foreign = await it.ask("GET", at["two-new"])
        written = [
            await it.ask("DELETE", at["one-old"]),
            await it.ask("PUT", f"{at['one-old']}&tagging", TAGS),
            await it.ask("DELETE", f"{at['one-old']}&tagging"),
        ]
        assert (await publish(it.running, "two")).phase == "done"
        gone, shown = await it.ask("GET", at["one-new"]), await it.ask("GET", at["two-new"])

    assert [(a.status, a.body) for a in (old, new, shown)] == [
        (200, b"one-old"),
        (200, b"one-new"),
        (200, b"two-new"),
    ]
    assert head.headers["x-amz-version-id"] == old.headers["x-amz-version-id"] == ids["one-old"]
    assert b"<Value>one-old</Value>" in tags.body
    assert [(a.status, b"<Code>NoSuchVersion</Code>" in a.body) for a in (foreign, gone)] == [(404, True)] * 2
    assert [a.status for a in written] == [403] * 3
    told = [a.headers["x-forebay-generation"] for a in (old, new, head, tags, foreign, gone, shown)]
    assert told == ["1"] * 5 + ["2"] * 2
