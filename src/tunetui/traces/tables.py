"""The CSV recordings: Azure's LLM inference traces of 2023 and 2024, and BurstGPT.

Sources: github.com/Azure/AzurePublicDataset and github.com/HPMLL/BurstGPT. It reads no JSON.
"""

from __future__ import annotations

import csv
from collections.abc import Callable

from tunetui.traces.columns import LeftOut, Row, token_count
from tunetui.traces.lines import BrokenLine
from tunetui.traces.times import iso_s, moment_s

AZURE, BURSTGPT = "azure csv", "burstgpt csv"
ParseLine = Callable[[str], Row]


def table_reader(header: str) -> tuple[str, ParseLine] | None:
    """The format with this header line, and what makes a row of each line after it; None for another header."""
    try:
        names = [name.strip().casefold() for name in _fields(header)]
    except BrokenLine:
        return None
    if {"timestamp", "contexttokens", "generatedtokens"} <= set(names):
        return AZURE, _azure(names)
    if {"timestamp", "request tokens", "response tokens"} <= set(names):
        return BURSTGPT, _burstgpt(names)
    return None


def _azure(names: list[str]) -> ParseLine:
    time, prompt, output = (names.index(name) for name in ("timestamp", "contexttokens", "generatedtokens"))

    def parse(line: str) -> Row:
        fields = _fields(line, len(names))
        return Row(
            iso_s(fields[time].strip(), "TIMESTAMP"),
            token_count(fields[prompt].strip(), "ContextTokens"),
            token_count(fields[output].strip(), "GeneratedTokens"),
        )

    return parse


def _burstgpt(names: list[str]) -> ParseLine:
    time, prompt, output = (names.index(name) for name in ("timestamp", "request tokens", "response tokens"))

    def parse(line: str) -> Row:
        fields = _fields(line, len(names))
        if fields[output].strip() in ("0", "0.0"):  # BurstGPT: a failed request
            raise LeftOut("failed requests (no response tokens)")
        return Row(
            moment_s(fields[time].strip(), "Timestamp"),
            token_count(fields[prompt].strip(), "Request tokens"),
            token_count(fields[output].strip(), "Response tokens"),
        )

    return parse


def _fields(line: str, wanted: int | None = None) -> list[str]:
    """The fields of a line. Raises BrokenLine for another number of them than `wanted`."""
    try:
        fields = next(csv.reader([line])) if '"' in line else line.split(",")
    except (csv.Error, StopIteration):
        raise BrokenLine("not CSV") from None
    if wanted is not None and len(fields) != wanted:
        raise BrokenLine(f"{len(fields)} fields where the header has {wanted}")
    return fields
