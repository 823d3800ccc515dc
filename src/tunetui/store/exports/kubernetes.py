"""A baseline as a Kubernetes Deployment with its Service. In arguments and variables Kubernetes fills in `$(NAME)`."""

from __future__ import annotations

from typing import Any

from tunetui.core.flags import Word
from tunetui.store.exports.server import CONTAINER_PORT, Server, container_words, notes_elsewhere
from tunetui.store.exports.text import Quoted, dumped


def render(server: Server) -> tuple[str, list[str]]:
    """Both documents, and what they do not say."""
    labels = {"app.kubernetes.io/name": server.name}
    meta = {"name": server.name, "labels": labels}
    pod = {
        "containers": [_container(server)],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"selector": labels, "ports": [{"name": "http", "port": CONTAINER_PORT, "targetPort": "http"}]},
    }
    return f"{dumped(deployment)}---\n{dumped(service)}", [*notes_elsewhere(server), *_notes(server)]


def _notes(server: Server) -> list[str]:
    notes = [f"the secret {secret_name(server)} must have {name}: what {what} had"
             for name, what in server.secrets.items()]  # fmt: skip
    if server.wants_hf_token:
        notes.append(f"HF_TOKEN is taken from the secret {secret_name(server)} where there is one")
    if not server.model_is_local:
        notes.append("the model is downloaded at each start: mount a volume at /root/.cache/huggingface to keep it")
    return notes


def _container(server: Server) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "vllm",
        "image": Quoted(":".join(server.image)),
        "command": [Quoted("vllm"), Quoted("serve")],  # older images had another entry point
        "args": [literal_or_reference(word) for word in container_words(server)],
        "env": variables(server),
        "ports": [{"name": "http", "containerPort": CONTAINER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if server.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": Quoted(server.gpus)}}
    if not container["env"]:
        del container["env"]
    return container


def secret_name(server: Server) -> str:
    """The Secret that must be there for the secrets of this server."""
    return f"{server.name}-secrets"


def variables(server: Server, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The variables of the container: those written down, and those from the Secret; not those in `without`."""
    kept = [{"name": key, "value": literal(value)} for key, value in server.environment_elsewhere.items()]
    names = {name: False for name in server.secrets} | ({"HF_TOKEN": True} if server.wants_hf_token else {})
    return [
        *kept,
        *(
            {"name": name, "valueFrom": {"secretKeyRef": _key(server, name, optional)}}
            for name, optional in names.items()
            if name not in without
        ),
    ]


def _key(server: Server, name: str, optional: bool) -> dict[str, Any]:
    return {"name": secret_name(server), "key": name, **({"optional": True} if optional else {})}


def literal_or_reference(word: Word) -> Quoted:
    """An argument of a container."""
    return literal(word) if isinstance(word, str) else Quoted(f"$({word.variable})")


def literal(text: str) -> Quoted:
    """`$$` is a `$` that begins no reference."""
    return Quoted(text.replace("$", "$$"))
