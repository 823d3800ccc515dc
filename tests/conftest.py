"""What tests of several rooms share."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama, made by the interpreter of the vLLM under test."""
    given = os.environ.get("TUNETUI_TEST_MODEL")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("model") / "toy-llama"
    python = shlex.split(os.environ["TUNETUI_TEST_VLLM"])[0]
    script = Path(__file__).with_name("toy_model.py")
    subprocess.run([python, str(script), str(folder)], check=True, timeout=300, capture_output=True)
    return folder
