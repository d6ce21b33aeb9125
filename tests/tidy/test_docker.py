"""What lies in docker/ can be read, agrees with itself, and names metrics and settings that exist."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs would be one more dependency, for this file alone

from gateway.setting_rows import TABLE
from gateway.telemetry import METRICS
from tests.tidy.repository import ROOT

DOCKER = ROOT / "docker"
DASHBOARD = DOCKER / "grafana" / "dashboards" / "forebay.json"
LABELS = {
    row.name + suffix: {*row.labels, "le"} for row in METRICS for suffix in ("", "_bucket", "_sum", "_count")
}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def read_yaml(name: str) -> Any:
    """Read one of the files."""
    return yaml.safe_load((DOCKER / name).read_text())


def queries() -> Iterator[str]:
    """Give every PromQL expression of the dashboard and of the alerts."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for group in read_yaml("alerts.yml")["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_query_names_metrics_and_labels_that_exist(query: str) -> None:
    """A panel or an alert over a metric that nobody exports stays empty for ever."""
    names = set(re.findall(r"\b(?:forebay|process)_[a-z_]+\b", query))
    used = {
        label
        for braces in re.findall(r"\{([^}]*)\}", query)
        for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", braces)
    } | {label.strip() for by in re.findall(r"\bby \(([^)]*)\)", query) for label in by.split(",")}

    assert names <= LABELS.keys() | PROCESS
    assert names or query == 'up{job="forebay"} == 0'
    assert used <= {"job"} | {label for name in names for label in LABELS.get(name, set())}


def test_dashboard_shows_what_an_operator_asks_for() -> None:
    """Hit rate, backlog, origin latency, throttling, requests and cache use each have a panel; ids and places differ."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel.get("targets", []))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]

    for wanted in (
        'forebay_cache_hit_ratio{unit="requests"}',
        'forebay_cache_hit_ratio{unit="bytes"}',
        "forebay_writeback_pending_objects",
        "forebay_writeback_pending_bytes",
        "forebay_writeback_oldest_pending_seconds",
        "histogram_quantile(0.99, sum by (le) (rate(forebay_origin_request_seconds_bucket",
        "forebay_origin_throttled_total",
        "forebay_origin_limiter_wait_seconds_sum",
        "sum by (operation) (rate(forebay_requests_total",
        "forebay_cache_used_bytes",
    ):
        assert wanted in shown
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_compose_sets_settings_that_exist() -> None:
    """Every FOREBAY_ variable of the compose file and of the Dockerfile is one of the table."""
    known = {row.variable for row in TABLE}
    environment = read_yaml("compose.yaml")["services"]["forebay"]["environment"]
    image = set(re.findall(r"\bFOREBAY_\w+", (DOCKER / "Dockerfile").read_text()))

    assert set(environment) <= known
    assert image <= known
    assert {"FOREBAY_ORIGIN", "FOREBAY_ACCESS_KEY", "FOREBAY_SECRET_KEY"} <= set(environment)


def test_ports_and_keys_agree_between_the_files() -> None:
    """What one file offers is what the others ask for."""
    services = read_yaml("compose.yaml")["services"]
    environment = services["forebay"]["environment"]
    dockerfile = (DOCKER / "Dockerfile").read_text()
    identity = json.loads((DOCKER / "seaweedfs-s3.json").read_text())["identities"][0]["credentials"][0]
    datasource = read_yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    panels = json.loads(DASHBOARD.read_text())["panels"]

    assert services["forebay"]["ports"] == ["127.0.0.1:9000:9000"]
    assert "FOREBAY_LISTEN=0.0.0.0:9000" in dockerfile
    assert "EXPOSE 9000" in dockerfile
    assert "127.0.0.1:9000/-/ready" in dockerfile
    assert read_yaml("prometheus.yml")["scrape_configs"][0]["static_configs"] == [
        {"targets": ["forebay:9000"]}
    ]
    assert environment["FOREBAY_ORIGIN"] == "http://origin:8333"
    assert "-s3.port=8333" in services["origin"]["command"]
    assert identity == {
        "accessKey": environment["FOREBAY_ORIGIN_ACCESS_KEY"],
        "secretKey": environment["FOREBAY_ORIGIN_SECRET_KEY"],
    }
    assert datasource["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in panels if "datasource" in panel} == {datasource["uid"]}


def test_mounted_files_are_there() -> None:
    """Docker makes an empty directory of a file that it does not find."""
    for service in read_yaml("compose.yaml")["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source


def test_volume_of_the_cache_is_the_image_s_own() -> None:
    """The cache lies on the volume, not in a layer that goes with the container."""
    (volume,) = read_yaml("compose.yaml")["services"]["forebay"]["volumes"]

    assert f"FOREBAY_CACHE_DIR={volume.partition(':')[2]}" in (DOCKER / "Dockerfile").read_text()


def test_image_takes_what_it_copies() -> None:
    """Everything that the Dockerfile copies from the tree is let through by .dockerignore, and is there."""
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.*)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    copied = {source for line in copies for source in line.split()[:-1]}

    assert copied == let_through
    assert all((ROOT / source).exists() for source in copied)
