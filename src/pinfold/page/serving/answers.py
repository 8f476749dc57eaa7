"""What every answer of the page has, and the answers of its door."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.responses import HTMLResponse, Response

from pinfold.web.answers import Document, Refusal, error_document


def policy(style: str = "'self'") -> str:
    """The content security policy of an answer: nothing but our own files; nobody frames it."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {style}; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


POLICY: Final[Mapping[str, str]] = {
    "Content-Security-Policy": policy(),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 34rem; margin: 12vh auto; padding: 0 1.25rem; }
h1 { font-size: 1.25rem; margin: 0 0 1rem; }
p { margin: 0 0 1rem; }
code { font: 0.875rem ui-monospace, monospace; overflow-wrap: anywhere; }
form { display: flex; gap: 0.5rem; flex-wrap: wrap; margin: 1.5rem 0; }
label { flex-basis: 100%; }
input { flex: 1 1 16rem; min-width: 0; }
input, button { font: inherit; padding: 0.4rem 0.75rem; }
[role=alert] { font-weight: 600; }
"""

_SIGN_IN: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pinfold: sign in</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>This page needs its token</h1>
{problem}<p>Open the address that <code>pinfold serve</code> has printed, or give the token here.
It is in <code>{file}</code>, where <code>pinfold serve</code> runs.</p>
<form method="post" action="/">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Open</button>
</form>
</main>
</body>
</html>
"""


def refused(refusal: Refusal) -> Response:
    """A refusal as a document, as the agent's API has them."""
    content = error_document(refusal.status, refusal.message, refusal.remedy)
    return Document(content, refusal.status, headers=POLICY)


def sign_in(problem: str, file: Path) -> Response:
    """The page for those without the token, which has a form for it.

    Args:
        problem: what is wrong with the token that was given; "": none was.
        file: where the token is.
    """
    told = f'<p role="alert">{html.escape(problem)}</p>\n' if problem else ""
    text = _SIGN_IN.format(style=_STYLE, problem=told, file=html.escape(str(file)))
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    headers = {**POLICY, "Content-Security-Policy": policy(f"'sha256-{digest}'")}
    return HTMLResponse(text, 401, headers=headers)
