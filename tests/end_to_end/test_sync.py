"""`aws s3 sync` of a tree of real files into the gateway and back: nothing differs, and a second run moves nothing.

300 files by default, over 5,000 with FOREBAY_TEST_LONG=1.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.content import IS_LONG, differences, make_tree, note_figure
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import (
    ACCESS_KEY,
    ORIGIN_ACCESS_KEY,
    ORIGIN_SECRET_KEY,
    REGION,
    SECRET_KEY,
    gateway,
    program,
    user_environment,
)

FILES: Final = 5200 if IS_LONG else 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if IS_LONG else 300)]


def test_sync_of_real_files_is_identical_both_ways_and_at_the_origin(
    moto: Origin, make_bucket: Callable[[Origin], str], cache_dir: Path, tmp_path: Path
) -> None:
    """A tree goes in, comes back, and lies at the origin after the flush, each time the same; repeated syncs are empty."""
    tree = make_tree(tmp_path / "tree", FILES)
    back, from_origin = tmp_path / "back", tmp_path / "from-origin"
    bucket = make_bucket(moto)
    place = f"s3://{bucket}/tree"
    with gateway(moto.endpoint, cache_dir) as running:
        user = Aws(running.endpoint, ACCESS_KEY, SECRET_KEY)

        uploaded = user.sync(str(tree), place)
        downloaded = user.sync(place, str(back))
        again_up = user.sync(str(tree), place)
        again_down = user.sync(place, str(back))
        running.flush(f"s3://{bucket}/")
        after_flush_up = user.sync(str(tree), place)
        after_flush_down = user.sync(place, str(back))
        Aws(moto.endpoint, ORIGIN_ACCESS_KEY, ORIGIN_SECRET_KEY).sync(place, str(from_origin))

    assert len(uploaded) == len(downloaded) == FILES
    assert differences(tree, back) == ""
    assert differences(tree, from_origin) == ""
    assert (again_up, again_down) == ([], [])
    assert (after_flush_up, after_flush_down) == ([], [])


class Aws:
    """The aws command, as a user has it, pointed at one endpoint."""

    def __init__(self, endpoint: str, access_key: str, secret_key: str) -> None:
        aws = program("aws")
        assert aws is not None, "awscli is not installed"
        self._command = [aws, "--endpoint-url", endpoint, "s3", "sync", "--no-progress"]
        self._environment = user_environment(
            AWS_ACCESS_KEY_ID=access_key,
            AWS_SECRET_ACCESS_KEY=secret_key,
            AWS_DEFAULT_REGION=REGION,
            AWS_CONFIG_FILE="/dev/null",
            AWS_SHARED_CREDENTIALS_FILE="/dev/null",
            AWS_EC2_METADATA_DISABLED="true",
        )

    def sync(self, source: str, target: str) -> list[str]:
        """Sync one way; give a line for each file that was moved."""
        begun_s = time.monotonic()
        done = subprocess.run(
            [*self._command, source, target],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        moved = done.stdout.splitlines()
        note_figure(f"aws s3 sync: {len(moved)} files in {time.monotonic() - begun_s:.1f} s")
        return moved
