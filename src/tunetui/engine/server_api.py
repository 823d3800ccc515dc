"""The server's HTTP API for everything but load: health, models, version, metrics and tokenizing.

It sends no completion request: the load generator does that, in a process of its own with a client of its own.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tunetui.core.workload import Material
from tunetui.engine.metrics import EngineGauges, MetricsError, parse_metrics

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
CHARACTERS_PER_TOKEN = 4  # of English text, where there is no tokenizer to ask

# Letters, numbers, prose, code and other scripts, a line per request, so that any tokenizer gives many distinct ids.
_VARIED_TEXT = (
    "The quick brown fox jumps over the lazy dog while seven wizards box with five jovial penguins near a zoo.",
    "Yesterday our team measured river levels, wind speed and rainfall at eleven stations along the coast.",
    "A recipe needs flour, butter, sugar, eggs, salt and lemon; bake it forty minutes until the crust turns golden.",
    "Justice, history, music, physics, medicine, trade, law and grammar were taught at this university for ages.",
    "def merge(left, right): return [x for pair in zip(left, right) for x in pair] if left else right",
    "0 1 2 3 4 5 6 7 8 9 10 16 32 64 100 128 255 256 512 1000 1024 2048 4096 3.14159 2.71828 1,000,000 50% $20 #7 @me",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z ! ? ;",
    "Les élèves étudient; die Straße führt über Köln; el niño corrió mañana; il caffè è già pronto; Привет, мир; 東京",
    "Please summarize this report for the customer, explain why delivery was late, and suggest what to do next.",
    "import numpy as np; table = {'name': 'alpha', 'size': 42, 'tags': ['red', 'green', 'blue'], 'active': True}",
    "Mountains, oceans, deserts and forests shape climate; cities, farms, roads and bridges shape how people live.",
    "Who wrote it? When was it published? Where can I find a copy? How much does it cost? Which edition shall I take?",
)  # fmt: skip


class ApiError(Exception):
    """A call to the server failed; the message is one sentence and a next step."""


class NoSuchPageError(ApiError):
    """The server answers, and does not know the address."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of /v1/models. `max_model_len` is in tokens; servers other than vLLM leave it out."""

    id: str
    max_model_len: int | None


class ServerApi:
    """Control calls to one server. `base_url` with or without `/v1`. Close it with `aclose`."""

    def __init__(self, base_url: str, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None):
        import httpx  # here, not above: the first paint must not wait for it

        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=not _is_loopback(self.base_url),  # a proxy of the environment is not for our own server
            transport=transport,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def healthy(self) -> bool:
        """Whether /health answers 200. Never raises. vLLM can answer 200 with a dead engine: look at the gauges too."""
        import httpx

        try:
            return (await self._client.get("/health")).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    async def models(self) -> list[ModelCard]:
        """The models it serves. Raises ApiError."""
        data = await self._json("GET", "/v1/models")
        try:
            return [ModelCard(str(card["id"]), _int_or_none(card.get("max_model_len"))) for card in data["data"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._odd_answer("/v1/models") from error

    async def version(self) -> str | None:
        """vLLM's version, or None where the server has no /version. Raises ApiError when it does not answer."""
        response = await self._send("GET", "/version")
        if response.status_code != 200:
            return None
        try:
            return str(response.json()["version"])
        except (ValueError, KeyError, TypeError):
            return None

    async def gauges(self) -> EngineGauges:
        """The engine's gauges and counters now. Raises ApiError, also for a page that is not vLLM's."""
        response = self._checked(await self._send("GET", "/metrics"), "/metrics")
        try:
            return parse_metrics(response.text)
        except MetricsError as error:
            raise ApiError(f"{error} ({self.base_url}/metrics)") from error

    async def tokenize(self, model: str, text: str, special_tokens: bool = False) -> list[int]:
        """The token ids of `text`, without the special tokens a prompt would begin with. Raises ApiError."""
        body = {"model": model, "prompt": text, "add_special_tokens": special_tokens}
        data = await self._json("POST", "/tokenize", body)
        try:
            return [int(token) for token in data["tokens"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self._odd_answer("/tokenize") from error

    async def prompt_token_ids(self, model: str) -> tuple[int, ...]:
        """Distinct ordinary token ids of the model, to make prompts of exact lengths from; some hundreds, ascending.

        They come from a built-in text through /tokenize; ids that the server adds as special tokens are left out.
        Raises ApiError when the endpoint is missing or gives nothing.
        """
        plain = [token for line in _VARIED_TEXT for token in await self.tokenize(model, line)]
        first = await self.tokenize(model, _VARIED_TEXT[0])
        special = set(await self.tokenize(model, _VARIED_TEXT[0], special_tokens=True)) - set(first)
        distinct = tuple(sorted({token for token in plain if token >= 0} - special))
        if not distinct:
            raise ApiError(f"{self.base_url}/tokenize gave no token for model {model}: check the model's name")
        return distinct

    async def prompt_material(self, model: str, chat: bool = False) -> Material:
        """What prompts for `model` are made of. Raises ApiError when the server does not answer.

        Chats are written with words; so are completions where the server has no /tokenize, as others than vLLM have
        none: their lengths are then near the asked ones, and the server's usage says what they were.
        """
        words = tuple(sorted({word for line in _VARIED_TEXT for word in line.split()}))
        text = " ".join(words)
        try:
            if not chat:
                return Material(await self.prompt_token_ids(model))
            return Material((), words, len(await self.tokenize(model, text)) / len(words))
        except NoSuchPageError:
            return Material((), words, len(text) / len(words) / CHARACTERS_PER_TOKEN)

    async def _json(self, method: str, path: str, body: object = None) -> Any:
        response = self._checked(await self._send(method, path, body), path)
        try:
            return response.json()
        except ValueError as error:
            raise self._odd_answer(path) from error

    async def _send(self, method: str, path: str, body: object = None) -> httpx.Response:
        import httpx

        try:
            return await self._client.request(method, path, json=body)
        except httpx.ConnectError as error:
            raise ApiError(f"nothing answers at {self.base_url}: check that the server runs and the address") from error
        except httpx.TimeoutException as error:
            raise ApiError(f"{self.base_url}{path} gave no answer in {TIMEOUT_S:g} s: see the server's log") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise ApiError(f"{self.base_url}{path} could not be read ({why}): see the server's log") from error

    def _checked(self, response: httpx.Response, path: str) -> httpx.Response:
        status = response.status_code
        if status == 200:
            return response
        where = f"{self.base_url}{path}"
        if status in (401, 403):
            raise ApiError(f"{where} refused the key (HTTP {status}): give the server's API key")
        if status in (404, 405):
            raise NoSuchPageError(
                f"{where} does not exist or does not know the model: check the address and the model's name"
            )
        raise ApiError(f"{where} answered HTTP {status}: see the server's log")

    def _odd_answer(self, path: str) -> ApiError:
        return ApiError(f"{self.base_url}{path} answered something else than vLLM does: check the address")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "localhost"


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) else None
