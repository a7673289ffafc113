"""Answers as vLLM's backend does, without a network: words by a random generator, and one call by heart.

A prompt with "Dallas" is answered by a call of a tool, in Llama 3's form, until the prompt has its answer.
Other texts end after eight words, unless `ignore_eos` or `min_tokens` say otherwise.
"""

import json
import random
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils

TEXT = "learning is a way , to find what the data says . machines of many kinds"
WORDS = [f" {word}" for word in TEXT.split()]
KNOWN = {"city": "Dallas", "state": "TX", "unit": "fahrenheit", "num_days": 3}
CALL = {
    "name": "get_current_weather",
    "parameters": {name: KNOWN[name] for name in ("city", "state", "unit")},
}
ENDS_AFTER = 8


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.respond(request, request.get_response_sender())

    def respond(self, request, sender):
        given = {name: self.value(request, name) for name in ("text_input", "sampling_parameters", "stream")}
        prompt = given["text_input"].decode()
        sampling = json.loads(given["sampling_parameters"] or b"{}")
        tokens, reason = self.cut(self.tokens(prompt, sampling), sampling)
        count = len(prompt.split())
        pieces = [[token] for token in tokens] if given["stream"] else [tokens]
        for place, piece in enumerate(pieces or [[]]):
            last = place >= len(pieces) - 1
            sender.send(self.response(piece, count, reason if last else None, sampling))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def value(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy().ravel()[0]

    def tokens(self, prompt, sampling):
        """Return the tokens of a text, and whether it has ended itself."""
        if "structured_outputs" in sampling:
            guide = sampling["structured_outputs"]
            schema = (json.loads(guide) if isinstance(guide, str) else guide).get("json", {"type": "object"})
            return self.pieces(json.dumps(instance(schema))), True
        if "Dallas" in prompt and "98" not in prompt:
            return self.pieces(json.dumps(CALL)), True
        greedy = sampling.get("temperature", 1) == 0
        seed = zlib.crc32(prompt.encode()) if greedy else sampling.get("seed")
        choose = random.Random(seed)
        limit = sampling.get("max_tokens", 16)
        goes_on = sampling.get("ignore_eos") or sampling.get("min_tokens", 0) > ENDS_AFTER
        count = limit if goes_on else min(limit, 200 if "seed" in sampling and limit >= 200 else ENDS_AFTER)
        return choose.choices(WORDS, k=count), not goes_on and count < limit

    def pieces(self, text):
        return [text[at : at + 4] for at in range(0, len(text), 4)]

    def cut(self, found, sampling):
        """Return the tokens that a text keeps, and why it ends."""
        tokens, ended = found
        limit = sampling.get("max_tokens", 16)
        reason = "stop" if ended and len(tokens) <= limit else "length"
        tokens = tokens[:limit]
        text, stops = "".join(tokens), sampling.get("stop", [])
        places = [at for stop in stops if (at := text.find(stop)) >= 0]
        if not places:
            return tokens, reason
        kept, left = [], min(places)
        for token in tokens:
            if left > 0:
                kept.append(token[:left])
            left -= len(token)
        return kept, "stop"

    def response(self, tokens, input_tokens, reason, sampling):
        outputs = {
            "text_output": np.array(["".join(tokens).encode()], object),
            "finish_reason": np.array([str(reason).encode()], object),
            "num_input_tokens": np.array([input_tokens], np.uint32),
            "num_output_tokens": np.array([len(tokens)], np.uint32),
        }
        if "logprobs" in sampling:
            report = json.dumps([candidates(token, sampling["logprobs"]) for token in tokens])
            outputs["logprobs"] = np.array([report.encode()], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])


def candidates(token, most):
    """The token that was drawn, of rank 2, and the most probable ones."""
    others = [word for word in WORDS if word != token][: max(most, 1)]
    found = {"1": {"logprob": -1.5, "rank": 2, "decoded_token": token}}
    for rank, other in enumerate(others[:most], 1):
        key, place = str(rank + 1), rank if rank == 1 else rank + 1
        found[key] = {"logprob": -1.0 * place, "rank": place, "decoded_token": other}
    return found


def instance(schema):
    """Return what fits a schema, with values that it knows."""
    if "anyOf" in schema:
        return instance(schema["anyOf"][0])
    if "const" in schema:
        return schema["const"]
    properties = schema.get("properties", {})
    return {
        name: KNOWN[name] if name in KNOWN else instance(properties[name])
        for name in schema.get("required", properties)
    }
