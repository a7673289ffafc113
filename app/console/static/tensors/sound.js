// Sound as tensors: a file is decoded and resampled by WebAudio, mono, and cut into pieces.

const MAX_SECONDS = 600;

// Returns the samples of a file, of -1 to 1, at so many a second.
export async function decodeSound(file, rate) {
  const bytes = await file.arrayBuffer();
  const context = new OfflineAudioContext(1, 1, rate);
  let sound;
  try {
    sound = await context.decodeAudioData(bytes); // at the rate of its context
  } catch {
    throw new Error(`${file.name || "The file"} is no sound that this browser reads.`);
  }
  if (sound.duration > MAX_SECONDS) throw new Error(`The sound is longer than ${MAX_SECONDS / 60} minutes.`);
  return mono(sound);
}

function mono(sound) {
  const found = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    const samples = sound.getChannelData(channel);
    for (let at = 0; at < found.length; at += 1) found[at] += samples[at] / sound.numberOfChannels;
  }
  return found;
}

// Returns the piece with a number, with silence behind what is there.
export function piece(samples, number, size) {
  const found = new Float32Array(size);
  found.set(samples.subarray(number * size, (number + 1) * size));
  return found;
}

export function pieces(samples, size) {
  return Math.max(1, Math.ceil(samples.length / size));
}

export function asDatatype(samples, datatype) {
  return datatype === "INT16" ? samples.map((each) => Math.round(Math.max(-1, Math.min(1, each)) * 32767)) : samples;
}
