"""What of a command line is a secret. It looks at names and shapes: a secret that looks like any word is not seen."""

from __future__ import annotations

import re

# Flags whose value vLLM, or the hub's client, reads from a variable as well: then the flag is not needed.
READ_FROM = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}

_FLAG = re.compile(r"(.*[-.])?(api-key|hf-token|password|secret|access-token|auth-token|access-key|secret-key)")
_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.I)
_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI and what follows it
    r"|\bgh[opsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bAKIA[0-9A-Z]{16}\b"  # AWS
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"  # a JSON web token
    r"|://[^/\s:@]*:[^/\s@]+@"  # a URL with a password
    r'|"\w*(api_?key|password|secret|secret_key|access_key|access_token|auth_token|hf_token)"\s*:\s*"[^"]',
    re.I,
)


def is_secret_flag(name: str) -> bool:
    """Whether the values of a flag (its long name, without dashes) are secrets."""
    return bool(_FLAG.fullmatch(name))


def is_secret_variable(name: str) -> bool:
    return bool(_VARIABLE.search(name))


def looks_secret(value: str) -> bool:
    """Whether there is a token or a password in `value`."""
    return bool(_VALUE.search(value))


def variable_of(flag: str) -> str:
    """The environment variable that stands for the value of a flag."""
    return READ_FROM.get(flag) or "SERVE_" + re.sub(r"[^A-Z0-9]", "_", flag.upper())
