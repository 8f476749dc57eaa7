"""``python -m tests.cluster.real.record``: tests/data/api_server anew, from Kubernetes itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.roots import ROOT
from tests.scenes.admission_recorder import recorded
from tests.scenes.api_exchanges import NAMESPACE, exchanges
from tests.scenes.control_plane import control_plane

FOLDER = ROOT / "tests" / "data" / "api_server"


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(Path(folder)) as control,
    ):
        of = ".".join(map(str, control.version))
        lines = [json.dumps({"name": name, **one}) for name, one in recorded(control).items()]
        (FOLDER / f"reviews-{of}.jsonl").write_text("\n".join(lines) + "\n")
        control.make_namespace(NAMESPACE)
        answers = exchanges(control.ask, control.forget)
        text = json.dumps(answers, indent=1, ensure_ascii=False)
        (FOLDER / f"answers-{of}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
