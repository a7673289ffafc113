"""A voice made of arithmetic, which Silero takes for speech: the same on every machine."""

import numpy as np
import numpy.typing as npt

RATE = 16000
CHUNK, CONTEXT = 512, 64


def voice(seconds: int) -> npt.NDArray[np.float32]:
    """Vowels: a glottal tone of about 120 Hz through formants that change four times a second."""
    time = np.arange(RATE * seconds) / RATE
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.7 * time) + 5 * np.sin(2 * np.pi * 3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    vowels = np.array(
        [(730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240), (530, 1840, 2480)]
    )
    steps = vowels[(time * 4).astype(int) % len(vowels)]
    formants = [np.convolve(steps[:, i], np.ones(800) / 800, "same") for i in range(3)]
    sound = np.zeros_like(time)
    for harmonic in range(1, 40):
        frequency = harmonic * pitch
        gain = sum(
            level / (1 + ((frequency - formant) / width) ** 2)
            for formant, level, width in zip(formants, (1, 0.5, 0.25), (90, 110, 150), strict=True)
        )
        sound += gain * np.sin(harmonic * phase) * (frequency < 7500)
    sound *= np.sqrt(0.5 + 0.5 * np.sin(2 * np.pi * 4 * time - 1))
    result: npt.NDArray[np.float32] = (0.3 * sound / np.abs(sound).max()).astype(np.float32)
    return result
