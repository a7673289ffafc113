"""Texts, or lists of token ids, to what the encoder takes."""

import json
import os

import triton_python_backend_utils as pb_utils

from nereid_client.text import TextError, Tokenizer, decode_texts


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder = os.path.join(args["model_repository"], args["model_version"])
        # Lengths of a few sizes, for more requests of one shape, which the encoder takes in one batch.
        limit = int(parameters["max_tokens"]["string_value"])
        self._tokenizer = Tokenizer(folder, limit, multiple=8)

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        try:
            tokens = self._tokens(request)
        except TextError as error:
            refusal = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        made = {
            "input_ids": tokens.ids,
            "attention_mask": tokens.mask,
            "token_type_ids": tokens.types,
            "num_input_tokens": tokens.counts[:, None],
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in made.items()])

    def _tokens(self, request):
        given = [pb_utils.get_input_tensor_by_name(request, name) for name in ("text", "token_ids")]
        text, ids = (tensor and tensor.as_numpy() for tensor in given)
        if (text is None) == (ids is None):
            raise TextError("expected either 'text' or 'token_ids'")
        return self._tokenizer.tokens(ids) if text is None else self._tokenizer.encode(decode_texts(text))
