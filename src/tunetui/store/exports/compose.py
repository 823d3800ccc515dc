"""A baseline as a Docker Compose file. Compose fills in `${NAME}` from its own environment or from `.env`."""

from __future__ import annotations

from typing import Any

from tunetui.core.flags import Word
from tunetui.store.exports.server import CONTAINER_PORT, Server, container_words, notes_elsewhere
from tunetui.store.exports.text import Quoted, dumped

CACHE = "/root/.cache/huggingface"


def render(server: Server) -> tuple[str, list[str]]:
    """The file, and what it does not say."""
    service: dict[str, Any] = {
        "image": Quoted(":".join(server.image)),
        "entrypoint": [Quoted("vllm"), Quoted("serve")],  # older images had another one
        "command": [_word(word) for word in container_words(server)],
        "environment": _environment(server),
        "ports": [_port(server)],
        "volumes": [{"type": "volume", "source": "huggingface-cache", "target": CACHE}],
        "ipc": "host",
        "restart": "unless-stopped",
    }
    if server.model.startswith("/"):
        path = _literal(server.model)
        service["volumes"].append({"type": "bind", "source": path, "target": path, "read_only": True})
    if server.gpus:
        device = {"driver": "nvidia", "count": server.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if not service["environment"]:
        del service["environment"]
    notes = [f"put {name} into .env: it has what {what} had" for name, what in server.secrets.items()]
    document = {"services": {server.name: service}, "volumes": {"huggingface-cache": {}}}
    return dumped(document), [*notes_elsewhere(server), *notes]


def _environment(server: Server) -> dict[str, Quoted]:
    kept = {key: _literal(value) for key, value in server.environment_elsewhere.items()}
    handed = {name: Quoted(f"${{{name}:?}}") for name in server.secrets if not name.startswith("SERVE_")}
    return kept | handed | ({"HF_TOKEN": Quoted("${HF_TOKEN:-}")} if server.wants_hf_token else {})


def _port(server: Server) -> dict[str, Any]:
    """Published where the server listened while it was tuned: loopback stays loopback."""
    everywhere = server.host in ("0.0.0.0", "::")
    return {"target": CONTAINER_PORT, "published": Quoted(server.port)} | (
        {} if everywhere else {"host_ip": Quoted("127.0.0.1" if server.host == "localhost" else server.host)}
    )


def _word(word: Word) -> Quoted:
    return _literal(word) if isinstance(word, str) else Quoted(f"${{{word.variable}:?}}")


def _literal(text: str) -> Quoted:
    """Compose takes a single `$` for the start of a reference."""
    return Quoted(text.replace("$", "$$"))
