"""What is said in a WAV file: one channel, 16 bits, 16 kHz."""

import io
import json
import wave

import numpy as np
import triton_python_backend_utils as pb_utils
from pocketsphinx import Decoder

RATE = 16000


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.max_frames = RATE * int(parameters["max_seconds"]["string_value"])
        self.decoder = Decoder(samprate=RATE)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        file = pb_utils.get_input_tensor_by_name(request, "wav").as_numpy()[0]
        try:
            text = self.text(self.samples(file))
        except (ValueError, EOFError, wave.Error) as error:
            error = pb_utils.TritonError(f"input 'wav': {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([text.encode()], object))])

    def samples(self, file):
        """Return the samples of a file as bytes."""
        with wave.open(io.BytesIO(file)) as sound:
            shape = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
            if shape != (1, 2, RATE):
                raise ValueError(f"expected one channel of 16 bits at {RATE} Hz")
            if sound.getnframes() > self.max_frames:
                raise ValueError(f"expected at most {self.max_frames // RATE} s (max_seconds)")
            return sound.readframes(sound.getnframes())

    def text(self, samples):
        """Return the words; "" where there are none."""
        self.decoder.start_utt()
        try:
            self.decoder.process_raw(samples, full_utt=True)
        finally:
            self.decoder.end_utt()
        best = self.decoder.hyp()
        return best.hypstr if best else ""
