"""A baseline in the forms that others start a server from, a module for each. They are text; nothing is written here.

Secrets are never in one: what a baseline left out, or what looks like a token, is a reference to a variable.
"""

from __future__ import annotations

from tunetui.core.baseline import Baseline
from tunetui.store.exports import compose, config, figures, helm, kubernetes, shell, systemd
from tunetui.store.exports.server import ExportError, Server, about, server_of
from tunetui.store.exports.text import comments

__all__ = ["FORMATS", "ExportError", "Server", "exported", "server_of"]

FORMATS = {
    "shell": shell.render,
    "yaml": config.render,
    "compose": compose.render,
    "systemd": systemd.render,
    "k8s": kubernetes.render,
    "helm": helm.render,
    "json": figures.render,
}
IN_CONTAINERS = ("compose", "k8s", "helm")


def exported(
    baseline: Baseline, form: str, simulated_anyway: bool = False, image: str = ""
) -> tuple[str, tuple[str, ...]]:
    """`baseline` as `form`, and what it does not carry, which its head says as well. Raises ExportError."""
    if image and form not in IN_CONTAINERS:
        raise ExportError(f"--image goes with {', '.join(IN_CONTAINERS)}: {form} has no container")
    server = server_of(baseline, simulated_anyway, image)
    text, more = FORMATS[form](server)
    notes = [*server.notes, *more]
    if form == "json":
        return figures.noted(text, server, notes), tuple(notes)
    return comments([about(server), *notes]) + text, tuple(notes)
