"""The demo's surroundings: moto comes up with a bucket, and goes."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gateway import app, demo
from gateway.client import GatewayClient
from gateway.settings import Settings, load
from storage.clock import SystemClock


def test_everything_is_gone_when_the_demo_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway runs over a moto that has the bucket; afterwards neither process nor directory is left."""
    seen: list[Settings] = []

    def run(settings: Settings, *, should_drain: bool, announce: app.Announce) -> None:
        assert should_drain
        assert Path(settings.cache_dir).is_dir()
        client = GatewayClient(settings.origin, "any", "key", SystemClock().wall_s)
        assert b"<Name>demo</Name>" in client.call("GET", "/")
        announce(app.Listening("http://127.0.0.1:9000", "http://127.0.0.1:9000/metrics"))
        seen.append(settings)

    monkeypatch.setattr(app, "run", run)

    demo.run(load(None, {}, {"cache-dir": str(tmp_path / "data")}), write=print)

    shown = capsys.readouterr().out
    assert 'endpoint_url="http://127.0.0.1:9000"' in shown
    assert "demo-secret-key" in shown
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(seen[0].origin, timeout=2)
