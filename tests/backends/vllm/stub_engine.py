"""The part of vLLM that Triton's vLLM backend uses, without a model: the tests copy it to `vllm/__init__.py`.

The answer to a prompt is its words, again and again, one a step of the event loop. Names are vLLM's; the
prompt "break" leaves the engine unhealthy.
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, Generic, Optional, TypeVar

import msgspec

STEP_S = 0.002


class UsageContext(Enum):
    """Who uses an engine."""

    OPENAI_API_SERVER = "OPENAI_API_SERVER"


@dataclass
class ModelConfig:
    """Limits of a model."""

    max_model_len: int


@dataclass
class VllmConfig:
    """What an engine is made of."""

    model_config: ModelConfig
    enable_lora: bool


@dataclass
class AsyncEngineArgs:
    """The contents of model.json."""

    model: str
    max_model_len: int = 64
    enable_lora: bool = False
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    aggregate_engine_logging: bool = False
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False

    def create_engine_config(self, usage_context: UsageContext) -> VllmConfig:
        """Return the configuration; an engine cannot have the model "missing"."""
        if self.model == "missing":
            raise OSError(f"{self.model} is not a local folder")
        return VllmConfig(ModelConfig(self.max_model_len), str(self.enable_lora).lower() == "true")


class SamplingParams(msgspec.Struct):
    """Parameters of a generation; of the types by which Triton's backend converts values."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    stop: Optional[list[str]] = None  # noqa: UP045  (Triton's backend looks for Optional)
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16  # noqa: UP045
    logprobs: Optional[int] = None  # noqa: UP045


@dataclass
class StructuredOutputsParams:
    """Constraints of an output."""

    json: Any = None


@dataclass
class PoolingParams:
    """Parameters of an embedding."""

    task: str
    dimensions: int | None = None


@dataclass
class TokensPrompt:
    """A prompt that is tokens."""

    prompt_token_ids: list[int]


@dataclass
class LoRARequest:
    """An adapter."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class Logprob:
    """Probability of a token."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    """One of the answers to a prompt, so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    """The answers to a prompt, so far."""

    prompt: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool


@dataclass
class EmbeddingOutput:
    """An embedding."""

    embedding: list[float]


T = TypeVar("T")


@dataclass
class PoolingRequestOutput(Generic[T]):
    """The result of an embedding request."""

    prompt_token_ids: list[int]
    outputs: T
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The result of an embedding request, as embedding."""

    @staticmethod
    def from_base(output: PoolingRequestOutput[EmbeddingOutput]) -> PoolingRequestOutput[EmbeddingOutput]:
        """Return the same."""
        return output


@dataclass
class FinishedRequestStats:
    """Of a request that ended."""

    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int


@dataclass
class IterationStats:
    """Of one step."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)
    n_params_iter: list[int] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)


class StatLoggerBase:
    """Receives the statistics of an engine."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int) -> None:
        """Keep nothing."""

    def record(self, scheduler_stats: object, iteration_stats: IterationStats | None) -> None:
        """Receive the statistics of a step."""


StatLoggerFactory = Callable[[VllmConfig, int], StatLoggerBase]


def build_1_2_5_buckets(max_value: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, ... up to a number."""
    every = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    return [value for value in every if value <= max_value]


class AsyncLLM:
    """An engine."""

    def __init__(self, config: VllmConfig, loggers: Sequence[StatLoggerFactory]) -> None:
        self._loggers = [factory(config, 0) for factory in loggers]
        self._limit = config.model_config.max_model_len
        self._healthy = True
        self._aborted: set[str] = set()

    @classmethod
    def from_vllm_config(
        cls, vllm_config: VllmConfig, stat_loggers: list[StatLoggerFactory] | None, **_: object
    ) -> "AsyncLLM":
        """Make an engine, on the running event loop."""
        asyncio.get_running_loop()
        return cls(vllm_config, stat_loggers or [])

    async def reset_mm_cache(self) -> None:
        """Have no cache."""

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return what the engine can do."""
        return ("generate", "embed")

    async def check_health(self) -> None:
        """Raise after the prompt "break"."""
        if not self._healthy:
            raise RuntimeError("the engine is broken")

    async def abort(self, request_id: str) -> None:
        """End a request."""
        self._aborted.add(request_id)

    def shutdown(self) -> None:
        """End the engine."""
        print("engine shut down", flush=True)

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, lora_request: LoRARequest | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Yield what was generated so far, after each token."""
        images = len(prompt["multi_modal_data"]["image"]) if isinstance(prompt, dict) else 0
        text = prompt["prompt"] if isinstance(prompt, dict) else prompt
        words = text.split() + [f"<image {index}>" for index in range(images)]
        if not words or len(words) > self._limit:
            raise ValueError(f"The decoder prompt (length {len(words)}) is not within 1 and {self._limit}")
        self._healthy = text != "break"
        outputs = [
            CompletionOutput(logprobs=None if params.logprobs is None else []) for _ in range(params.n)
        ]
        step = 0
        while any(output.finish_reason is None for output in outputs):
            await asyncio.sleep(STEP_S)
            for output in outputs:
                _extend(output, words[step % len(words)], params, lora_request)
            step += 1
            finished = outputs[0].finish_reason is not None
            self._record(step, len(words), finished, params.n)
            yield RequestOutput(text, list(range(len(words))), outputs, finished)

    async def encode(
        self, prompt: Any, params: PoolingParams, request_id: str
    ) -> AsyncIterator[PoolingRequestOutput[EmbeddingOutput]]:
        """Yield an embedding: the lengths of the words, or the tokens."""
        tokens = prompt.prompt_token_ids if isinstance(prompt, TokensPrompt) else map(len, prompt.split())
        embedding = [float(token) for token in tokens][: params.dimensions]
        yield PoolingRequestOutput(list(range(len(embedding))), EmbeddingOutput(embedding))

    def _record(self, step: int, prompt: int, finished: bool, n: int) -> None:
        stats = IterationStats(num_generation_tokens=n)
        if step == 1:
            stats.num_prompt_tokens, stats.time_to_first_tokens_iter = prompt, [0.003]
        else:
            stats.inter_token_latencies_iter = [0.002]
        if finished:
            stats.n_params_iter = [n]
            stats.finished_requests = [FinishedRequestStats(0.1, prompt, step)]
        for logger in self._loggers:
            logger.record(None, stats)


def _extend(
    output: CompletionOutput, word: str, params: SamplingParams, lora_request: LoRARequest | None
) -> None:
    if lora_request is not None:
        word = f"{word}@{lora_request.lora_path}"
    if params.stop and word in params.stop:
        output.finish_reason = "stop"
        return
    output.text += f" {word}"
    output.token_ids = [*output.token_ids, len(output.token_ids)]
    output.cumulative_logprob -= 0.5
    if output.logprobs is not None:
        output.logprobs.append({output.token_ids[-1]: Logprob(-0.5, 1, word)})
    if len(output.token_ids) == params.max_tokens:
        output.finish_reason = "length"


def random_uuid() -> str:
    """Return an identifier of a request."""
    return uuid.uuid4().hex


EngineClient = AsyncLLM
MultiModalCacheStats = SchedulerStats = dict

_MODULES = (
    *("config", "engine", "engine.arg_utils", "engine.protocol", "inputs", "inputs.data", "lora"),
    *("lora.request", "outputs", "pooling_params", "sampling_params", "usage", "usage.usage_lib", "utils"),
    *("v1", "v1.engine", "v1.engine.async_llm", "v1.metrics", "v1.metrics.loggers", "v1.metrics.stats"),
)


def _register() -> None:
    """Let vLLM's modules be imported: each has all of these names."""
    for name in _MODULES:
        module = ModuleType(f"{__name__}.{name}")
        vars(module).update({key: value for key, value in globals().items() if not key.startswith("_")})
        module.__path__ = []
        sys.modules[module.__name__] = module


if __name__ == "vllm":
    _register()
