"""What ``pinfold quota serve`` and ``classes serve`` say of options that mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.formats.extras import install_command


def kubeconfig(folder: Path, **context: str) -> Path:
    """One that leads nowhere."""
    cluster = {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}
    named = {"cluster": "nowhere", "user": "me"} | context
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": named}],
        "clusters": [cluster],
        "users": [{"name": "me", "user": {}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file


def serve(kind: str, *words: str) -> Result:
    return CliRunner().invoke(main, (kind, "serve", *words), env={"KUBERNETES_SERVICE_HOST": None})


@pytest.mark.parametrize("kind", ["quota", "classes"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--listen", "foo"), "'--listen': 'foo': must be HOST:PORT"),
        (("--listen", ":99999"), "'--listen': ':99999': must be HOST:PORT"),
        (("--health-listen", "::1"), "'--health-listen': '::1': must be HOST:PORT"),
        (("--client-authority", "/nonexistent"), "'--client-authority': File '/nonexistent'"),
        (("--client-authority", __file__), f"'--client-authority': {__file__}: it has to be the"),
        (("--namespace", "Bad_NS"), "'--namespace': 'Bad_NS': a lowercase RFC 1123 label"),
        (("--name", "a.b"), "'--name': 'a.b': must not contain dots"),
        ((), "this is no pod of a cluster: give --kubeconfig FILE"),
    ],
)
def test_a_wrong_option_is_named(kind: str, words: tuple[str, ...], told: str) -> None:
    found = serve(kind, *words)
    assert found.exit_code == 2
    assert f"Error: Invalid value for {told}" in found.output or f"Error: {told}" in found.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--claim-capacity", ""), "--claim-capacity: an empty name is none; leave it out"),
        (("--claim-driver", ""), "--claim-driver: an empty name is none; leave it out"),
        *(
            (("--no-claims", *words), f"{words[0]} says which claims count; with --no-claims none")
            for words in (
                ("--claim-driver", "x"),
                ("--claim-class", "x"),
                ("--claim-capacity", "x"),
                ("--claim-devices-are-cpus",),
            )
        ),
        (
            ("--watch-patience", "0"),
            "Invalid value for '--watch-patience': 0.0 is no number from 1",
        ),
    ],
)
def test_a_wrong_option_of_quotas_is_named(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path, namespace="mine")
    found = serve("quota", "--kubeconfig", str(config), *words)
    assert found.exit_code == 2
    assert f"Error: {told}" in found.output


def test_the_namespace_is_the_kubeconfigs(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    words = ("--kubeconfig", str(kubeconfig(tmp_path)), "--certificates", str(folder / "x"))
    found = serve("quota", *words, "--make-certificates")
    assert found.exit_code == 2
    assert "its context has no namespace: give --namespace NAME" in found.output
    kubeconfig(tmp_path, namespace="mine")
    # It comes as far as to the next thing that is wrong.
    found = serve("quota", *words, "--make-certificates")
    assert found.exit_code == 1
    assert f"{folder / 'x'}: Not a directory (give another --certificates)" in found.output


@pytest.mark.parametrize("kind", ["quota", "classes"])
def test_a_library_that_is_missing_is_named_with_its_extras(kind: str, tmp_path: Path) -> None:
    program = "import sys; sys.modules['cryptography'] = None\nfrom pinfold.__main__ import start\n"
    place = kubeconfig(tmp_path, namespace="here")
    done = subprocess.run(
        [sys.executable, "-c", f"{program}start()", kind, "serve", "--kubeconfig", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    told = f"pinfold {kind} serve needs cryptography; install pinfold with its extras: "
    assert done.stderr.splitlines()[-1] == f"Error: {told}{install_command('agent,cluster')}"
