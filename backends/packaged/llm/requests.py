"""Requests on their way to the engine: read, rendered and tokenised by a few threads."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from backends.packaged.llm.answer import Answer
from backends.packaged.llm.chat import render
from backends.packaged.llm.embedding_request import read_embedding_request
from backends.packaged.llm.engine.engine import Engine, Full
from backends.packaged.llm.engine.generation import Generation, ModelFacts
from backends.packaged.llm.engine.guided import Guides
from backends.packaged.llm.engine.reading import Embedding, Reading
from backends.packaged.llm.engine.sampling import SamplingParameters, read_sampling_parameters
from backends.packaged.llm.metrics import Metrics

_THREADS: Final = 2


class Requests:
    """Has requests answered by an engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        facts: ModelFacts,
        adapters: Sequence[str],
        most: int,
        metrics: Metrics,
    ) -> None:
        """Use an engine.

        Args:
            engine: for texts.
            tokenizer: of transformers.
            facts: of the model.
            adapters: their names.
            most: how many requests wait to be read.
            metrics: of the model.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._facts = facts
        self._adapters = adapters
        self._guides = Guides(tokenizer, facts.vocabulary, facts.ends)
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenizer")
        self._room = threading.BoundedSemaphore(most + _THREADS)

    def submit(self, request: Any) -> None:
        """Have a request answered."""
        answer = Answer(request, self._metrics)
        if not self._room.acquire(blocking=False):
            answer.refuse()
            return
        self._pool.submit(self._answer, answer)

    def close(self) -> None:
        """Finish all that was submitted."""
        self._pool.shutdown()
        self._engine.close()

    def _answer(self, answer: Answer) -> None:
        try:
            self._engine.submit(self._reading(answer))
        except Full:
            answer.refuse()
        except ValueError as error:
            answer.invalid(str(error))
        except Exception as error:
            pb_utils.Logger.log_error(f"a request was not read: {type(error).__name__}: {error}")
            answer.failed(str(error))
        finally:
            self._room.release()

    def _reading(self, answer: Answer) -> Reading:
        answer.read()
        answer.reading = self._embedding(answer) if answer.embedding else self._generation(answer)
        return answer.reading

    def _embedding(self, answer: Answer) -> Embedding:
        given = read_embedding_request(answer.embedding)
        prompt = self._tokenizer(given.input).input_ids if isinstance(given.input, str) else given.input
        self._check(prompt, one_more=0)
        return Embedding(prompt, answer, given.dimensions, salts=(answer.salt,))

    def _generation(self, answer: Answer) -> Generation:
        parameters = read_sampling_parameters(answer.parameters())
        self._check_parameters(parameters)
        # A template has written what is to be in front of a chat.
        text = render(self._tokenizer, answer.chat) if answer.chat else answer.prompt
        prompt = self._tokenizer(text, add_special_tokens=not answer.chat).input_ids
        self._check(prompt)
        structure = parameters.structured_outputs
        return Generation(
            prompt,
            parameters,
            self._facts,
            answer,
            scored=answer.options["return_cumulative_logprob"],
            streamed=answer.streams,
            guide=structure and self._guides.make(structure),
            salt=answer.salt,
        )

    def _check(self, prompt: Sequence[int], one_more: int = 1) -> None:
        """Refuse what cannot be read, and followed by a token, in vLLM's words."""
        limit, vocabulary = self._facts.limit, self._facts.vocabulary
        if not prompt:
            raise ValueError("The decoder prompt cannot be empty")
        if len(prompt) + one_more > limit:
            raise ValueError(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of"
                f" {limit}. Make sure that `max_model_len` is no smaller than the number of text"
                " tokens."
            )
        odd = [token for token in prompt if not 0 <= token < vocabulary]
        if odd:
            raise ValueError(f"Token id {odd[0]} is out of vocabulary")

    def _check_parameters(self, parameters: SamplingParameters) -> None:
        vocabulary = self._facts.vocabulary
        odd = sorted(token for token in parameters.logit_bias if not 0 <= token < vocabulary)
        if odd:
            raise ValueError(
                f"token_id(s) {odd[:5]} in logit_bias contain out-of-vocab token ids. Vocabulary size:"
                f" {vocabulary}"
            )
        name = parameters.lora_name
        if name and name not in self._adapters:
            raise ValueError(f"LoRA {name} is not supported, we currently support {self._adapters}")
