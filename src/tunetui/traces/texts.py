"""Prompts and messages out of JSON values: the shapes in which chat APIs write them, as plain text.

It counts no tokens and knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunetui.core.trace import Messages


def clean(text: str) -> str:
    """The text without lone surrogates, which JSON can spell and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def content_text(content: object) -> str:
    """The text of a message's content: text itself, or the text parts of a list of parts; other parts have none."""
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "\n".join(clean(part) for part in parts if isinstance(part, str))
    return ""


def messages_of(value: object, role: str = "role", content: str = "content") -> Messages:
    """(role, text) of each message in a list of objects; what is no object with a role is left out."""
    if not isinstance(value, list):
        return ()
    return tuple(
        (clean(message[role]), content_text(message.get(content)))
        for message in value
        if isinstance(message, Mapping) and isinstance(message.get(role), str)
    )


def characters(text: str | Messages) -> int:
    """How many characters of content a prompt has."""
    return len(text) if isinstance(text, str) else sum(len(content) for _, content in text)


def at_path(value: object, path: str) -> object:
    """What stands at a dotted path, e.g. "usage.prompt_tokens" (a key with dots in it counts first), or None."""
    if not isinstance(value, Mapping):
        return None
    if path in value:
        found: object = value[path]
        return found
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def first_given(value: object, *paths: str) -> object:
    """What stands at the first of these dotted paths that has something, or None."""
    return next((found for path in paths if (found := at_path(value, path)) is not None), None)
