"""``pinfold classes scheduler-config``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pinfold.cli import main
from tests.roots import ROOT

CLASSES = str(ROOT / "examples/classes/classes.yaml")


def test_the_scheduler_asks_about_all_classes() -> None:
    options = ["--authority", "/etc/ca.crt", "--api-version", "v1beta1"]
    answer = CliRunner().invoke(main, ["classes", "scheduler-config", CLASSES, *options])
    assert answer.exit_code == 0, answer.output
    found = yaml.safe_load(answer.output)
    assert found["apiVersion"] == "kubescheduler.config.k8s.io/v1beta1"
    (extender,) = found["extenders"]
    managed = [one["name"] for one in extender["managedResources"]]
    assert managed == ["class.pinfold.dev/gpu-gold", "class.pinfold.dev/gpu-silver"]
    assert all(one["ignoredByScheduler"] for one in extender["managedResources"])
    # The certificate is for this name, also where the URL is an address.
    name = "pinfold-classes-extender.pinfold-classes.svc"
    assert extender["tlsConfig"] == {"serverName": name, "caFile": "/etc/ca.crt"}
    assert extender["urlPrefix"] == f"https://{name}"
    assert extender["enableHTTPS"] is True
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert extender["weight"] == 10


def test_both_show_certificates_by_files_that_the_scheduler_sees() -> None:
    options = ["--url", "https://10.96.0.7", "--server-name", "extender.example"]
    files = ["--authority", "/a", "--client-certificate", "/c", "--client-key", "/k"]
    answer = CliRunner().invoke(main, ["classes", "scheduler-config", CLASSES, *options, *files])
    (extender,) = yaml.safe_load(answer.output)["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.7"
    assert extender["tlsConfig"] == {
        "serverName": "extender.example",
        "caFile": "/a",
        "certFile": "/c",
        "keyFile": "/k",
    }


def test_who_wants_no_checks_has_to_say_so() -> None:
    answer = CliRunner().invoke(main, ["classes", "scheduler-config", CLASSES, "--insecure"])
    (extender,) = yaml.safe_load(answer.output)["extenders"]
    assert extender["tlsConfig"]["insecure"] is True
    assert "caFile" not in extender["tlsConfig"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument"),
        ([CLASSES, "--url", "pinfold:9444"], "must begin with https://"),
        ([CLASSES], "give --authority"),
        ([CLASSES, "--authority", "/a", "--insecure"], "or --insecure"),
        ([CLASSES, "--authority", "/a", "--client-key", "/k"], "both --client-certificate"),
        ([CLASSES, "--url", "http://x", "--authority", "/a"], "the extender speaks TLS only"),
        ([CLASSES, "--authority", "a.crt"], "'a.crt': must begin with /"),
        (["empty.yaml", "--insecure"], "empty.yaml: nothing in it"),
        (["none.yaml", "--insecure"], "none.yaml"),
    ],
)
def test_what_is_missing_is_told(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("")
    answer = CliRunner().invoke(main, ["classes", "scheduler-config", *arguments])
    assert answer.exit_code == 2
    assert told in answer.output
