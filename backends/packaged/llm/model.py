"""Generates text by transformers or OpenVINO, with the tensors and the texts of Triton's vLLM backend.

Requests are continued together. The frameworks are imported with the model, not for the completion of its
configuration.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from backends.packaged.array_model import instance_threads
from backends.packaged.llm.adapters import FILE, add_adapters, read_adapters
from backends.packaged.llm.answer import OPTIONS
from backends.packaged.llm.engine_arguments import EngineArguments, model_folder, read_arguments
from backends.packaged.llm.metrics import Metrics
from backends.transformers_files import check_generates, check_weights

_INPUTS: Final = {
    "text_input": "TYPE_STRING",
    "messages": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "sampling_parameters": "TYPE_STRING",
    "exclude_input_in_output": "TYPE_BOOL",
    "cache_salt": "TYPE_STRING",
    **dict.fromkeys(OPTIONS, "TYPE_BOOL"),
    "embedding_request": "TYPE_STRING",
}
_OUTPUTS: Final = {
    "text_output": ("TYPE_STRING", -1),
    "finish_reason": ("TYPE_STRING", -1),
    "cumulative_logprob": ("TYPE_FP32", -1),
    "logprobs": ("TYPE_STRING", -1),
    "num_input_tokens": ("TYPE_UINT32", 1),
    "num_output_tokens": ("TYPE_UINT32", -1),
    "num_cached_tokens": ("TYPE_UINT32", 1),
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
                config.add_input({"name": name, "data_type": data_type, "dims": [1], "optional": True})
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
        given = directory, args["model_instance_kind"], int(args["model_instance_device_id"]), config
        loaded = Future[Any]()
        threading.Thread(target=self._serve, args=(loaded, *given), name="engine", daemon=True).start()
        try:
            self._requests = loaded.result()
        except ValueError as error:
            raise pb_utils.TritonModelException(str(error)) from error

    def _serve(self, loaded: Future[Any], *given: Any) -> None:
        """Load the model and compute by it, in one thread.

        Where one thread has loaded a model, PyTorch computes what another asks of it on one processor: on
        two, a step of eight texts took twice as long.
        """
        # Threads of OpenMP that spin while they wait keep a processor from the one that is waited for: beside
        # other processes a step took 5 to 20 times as long. Read when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            engine, requests = self._load(*given)
        except BaseException as error:
            loaded.set_exception(error)
            return
        loaded.set_result(requests)
        engine.run()

    def _load(self, directory: str, kind: str, device_id: int, config: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return an engine that is to be run, and what takes requests for it."""
        arguments = read_arguments(directory)
        folder = model_folder(directory, arguments.model, arguments.engine)
        adapters = read_adapters(directory)
        import torch

        from backends.packaged.llm.engine.engine import Engine
        from backends.packaged.llm.engine.prefix_cache import PrefixCache
        from backends.packaged.llm.requests import Requests

        on_gpu = kind == "GPU" or (kind == "MODEL" and torch.cuda.is_available())
        threads = instance_threads(config)
        if not on_gpu:
            torch.set_num_threads(threads)
        if arguments.engine == "openvino":
            check_generates(folder)
            _refuse_for_openvino(kind, adapters)
            batch, tokenizer, facts = _by_openvino(folder, arguments, threads)
        else:
            check_weights(folder)
            device = torch.device("cuda", device_id) if on_gpu else torch.device("cpu")
            batch, tokenizer, facts = _by_transformers(folder, arguments, device, adapters)
        engine = Engine(
            batch,
            arguments.max_num_seqs,
            arguments.max_num_waiting,
            arguments.max_num_batched_tokens,
            facts.limit,
            PrefixCache(arguments.prefix_cache_bytes),
            self._metrics.observe,
            thread=False,
        )
        most = arguments.max_num_waiting
        return engine, Requests(engine, tokenizer, facts, [*adapters], most, self._metrics)

    def execute(self, requests: Sequence[Any]) -> None:
        """Have each request answered, on other threads."""
        for request in requests:
            self._requests.submit(request)

    def finalize(self) -> None:
        """Finish what is being generated."""
        self._requests.close()


def _refuse_for_openvino(kind: str, adapters: Mapping[str, str]) -> None:
    if kind == "GPU":
        raise ValueError("engine openvino computes on the CPU: instance_group has KIND_GPU")
    if adapters:
        raise ValueError(f"engine openvino has no adapters: remove {FILE}, or take engine transformers")


def _by_openvino(folder: str, arguments: EngineArguments, threads: int) -> tuple[Any, Any, Any]:
    """Return what computes texts, the tokenizer, and the facts of a model of OpenVINO."""
    from backends.packaged.llm.loading import folder_facts, load_tokenizer
    from backends.packaged.llm.openvino.batch import Batch
    from backends.packaged.llm.openvino.network import load_network

    network = load_network(folder, arguments.dtype, threads)
    tokenizer = load_tokenizer(folder)
    facts = folder_facts(folder, network.vocabulary, tokenizer, arguments.max_model_len)
    return Batch(network), tokenizer, facts


def _by_transformers(
    folder: str, arguments: EngineArguments, device: Any, adapters: Mapping[str, str]
) -> tuple[Any, Any, Any]:
    """Return the same of a model of transformers."""
    from backends.packaged.llm import loading
    from backends.packaged.llm.engine.batch import adapters_of, make_batch

    int8 = arguments.quantization == "int8"
    if int8 and (device.type != "cpu" or adapters):
        raise ValueError("quantization int8 is for the CPU, and for models without adapters")
    model = loading.load_model(folder, arguments.dtype, device, int8)
    if adapters:
        add_adapters(model, adapters, adapters_of)
    tokenizer = loading.load_tokenizer(folder)
    facts = loading.model_facts(model, tokenizer, arguments.max_model_len)
    batch = make_batch(model, pb_utils.Logger.log_warn)
    if adapters and not batch.joins:
        raise ValueError("a model that continues one text at a time cannot have adapters")
    return batch, tokenizer, facts
