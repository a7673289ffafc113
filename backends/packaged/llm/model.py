"""Generates text by models of transformers, with the tensors and the texts of Triton's vLLM backend.

Requests are continued together. The frameworks are imported with the model, not for the completion of its
configuration.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from backends.packaged.array_model import instance_threads
from backends.packaged.llm.answer import OPTIONS, Answer, Metrics
from backends.packaged.llm.engine_arguments import model_folder, read_arguments
from backends.packaged.llm.sampling import SamplingParameters, read_sampling_parameters
from backends.transformers_files import check_weights

_INPUTS: Final = {
    "text_input": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "sampling_parameters": "TYPE_STRING",
    "exclude_input_in_output": "TYPE_BOOL",
    **dict.fromkeys(OPTIONS, "TYPE_BOOL"),
}
_OUTPUTS: Final = {
    "text_output": ("TYPE_STRING", -1),
    "finish_reason": ("TYPE_STRING", -1),
    "cumulative_logprob": ("TYPE_FP32", -1),
    "logprobs": ("TYPE_STRING", -1),
    "num_input_tokens": ("TYPE_UINT32", 1),
    "num_output_tokens": ("TYPE_UINT32", -1),
}


class TritonPythonModel:
    """One instance of a model."""

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        """Declare the tensors; decoupled, and batches are formed here."""
        known = config.as_dict()
        declared = {tensor["name"] for tensor in (*known["input"], *known["output"])}
        for name, data_type in _INPUTS.items():
            if name not in declared:
                optional = {"optional": True} if name != "text_input" else {}
                config.add_input({"name": name, "data_type": data_type, "dims": [1], **optional})
        for name, (data_type, size) in _OUTPUTS.items():
            if name not in declared:
                config.add_output({"name": name, "data_type": data_type, "dims": [size]})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model, and start its engine."""
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(
                "llm backend must be configured to use decoupled model transaction policy"
            )
        self._metrics = Metrics({"model": args["model_name"], "version": args["model_version"]})
        directory = os.path.join(args["model_repository"], args["model_version"])
        try:
            self._load(directory, args["model_instance_kind"], int(args["model_instance_device_id"]), config)
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error

    def _load(self, directory: str, kind: str, device_id: int, config: Mapping[str, Any]) -> None:
        arguments = read_arguments(directory)
        folder = model_folder(directory, arguments.model)
        check_weights(folder)
        import torch

        from backends.packaged.llm import loading
        from backends.packaged.llm.batch import Batch
        from backends.packaged.llm.engine import Engine

        on_gpu = kind == "GPU" or (kind == "MODEL" and torch.cuda.is_available())
        self._device = torch.device("cuda", device_id) if on_gpu else torch.device("cpu")
        if not on_gpu:
            torch.set_num_threads(instance_threads(config))
        model = loading.load_model(folder, arguments.dtype, self._device)
        self._tokenizer = loading.load_tokenizer(folder)
        self._limit = loading.context_length(model, arguments.max_model_len)
        self._ends = loading.end_tokens(model, self._tokenizer)
        batch = Batch(model)
        if not batch.joins and arguments.max_num_seqs > 1:
            pb_utils.Logger.log_warn(f"{type(model).__name__} continues one text at a time")
        self._engine = Engine(
            batch,
            arguments.max_num_seqs,
            arguments.max_num_waiting,
            arguments.max_num_batched_tokens,
            self._metrics.observe,
        )

    def execute(self, requests: Sequence[Any]) -> None:
        """Submit each request to the engine, which answers it."""
        for request in requests:
            answer = Answer(request, self._metrics)
            try:
                self._submit(request, answer)
            except ValueError as error:
                answer.failed(str(error))

    def _submit(self, request: Any, answer: Answer) -> None:
        from backends.packaged.llm.engine import Full
        from backends.packaged.llm.generation import Generation

        answer.read()
        parameters = _parameters(request)
        prompt: list[int] = self._tokenizer(answer.prompt).input_ids
        self._check(prompt)
        answer.input_tokens = len(prompt)
        generation = Generation(
            prompt,
            parameters,
            self._limit,
            self._ends,
            self._decoded,
            answer,
            self._device,
            scored=answer.options["return_cumulative_logprob"],
            streamed=answer.streams,
        )
        try:
            self._engine.submit(generation)
        except Full:
            answer.refuse()

    def _check(self, prompt: Sequence[int]) -> None:
        """Refuse what cannot be continued, in vLLM's words."""
        if not prompt:
            raise ValueError("The decoder prompt cannot be empty")
        if len(prompt) >= self._limit:
            raise ValueError(
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of"
                f" {self._limit}. Make sure that `max_model_len` is no smaller than the number of text"
                " tokens."
            )

    def _decoded(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def finalize(self) -> None:
        """Finish what is being generated."""
        self._engine.close()


def _parameters(request: Any) -> SamplingParameters:
    tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
    text = request.parameters() if tensor is None else tensor.as_numpy().item().decode()
    return read_sampling_parameters(text)
