// The editor of an input that is sound: a file, decoded and resampled, whole or piece by piece.
import { field, h, replace } from "../lib/dom.js";
import { count, decimal } from "../lib/format.js";
import { asDatatype, decodeSound, piece, pieces } from "../tensors/sound.js";

// Adds to an editor: `step()` goes on to the next piece, `rewind()` to the first one, `left()` counts the rest.
export function soundEditor(spec, form) {
  const file = h("input", { type: "file", accept: "audio/*" });
  const rate = h("input", { type: "number", min: "1000", max: "96000", value: "16000" });
  const { samples: fixed, open } = spec.sound;
  const samples = h("input", { type: "number", min: "1", max: "1000000", value: fixed ?? "", disabled: !open });
  const preview = h("div", { class: "preview" });
  const words = h("p", { class: "quiet", role: "status" });
  const state = { sound: null, at: 0 };
  const size = () => Math.max(1, Math.floor(Number(samples.value)) || state.sound?.length || 1);
  const told = () => {
    if (!state.sound) return;
    const all = pieces(state.sound, size());
    const seconds = decimal(state.sound.length / usedRate());
    words.textContent = `${seconds} s, ${count(state.sound.length)} samples at ${count(usedRate())} Hz; ` +
      `piece ${Math.min(all, state.at + 1)} of ${all} is next`;
  };
  const usedRate = () => form.rate() ?? (Number(rate.value) || 16000);
  const load = async () => {
    state.sound = null;
    state.at = 0;
    words.textContent = "";
    const [chosen] = file.files;
    if (!chosen) return replace(preview);
    try {
      state.sound = await decodeSound(chosen, usedRate());
      replace(preview, h("audio", { src: URL.createObjectURL(chosen), controls: true, aria: { label: chosen.name } }));
      return told();
    } catch (error) {
      return replace(preview, h("p", { class: "bad", role: "alert" }, error.message));
    }
  };
  file.addEventListener("change", load);
  rate.addEventListener("change", load);
  samples.addEventListener("change", told);
  const choices = [
    field("Samples of a request", samples, spec.sound.open && spec.sound.samples === null ? "empty: all of them" : ""),
    form.hasRate ? null : field("Samples a second", rate),
  ];
  return {
    node: h("div", {}, field("Sound", file), h("div", { class: "choices" }, choices), preview, words),
    read: async () => {
      if (!state.sound) throw new Error("choose a sound");
      const elements = asDatatype(piece(state.sound, state.at, size()), spec.datatype);
      return { shape: [...spec.shape.slice(0, -1).map(() => 1), size()], elements };
    },
    step: () => ((state.at += 1), told()),
    rewind: () => ((state.at = 0), told()),
    left: () => (state.sound ? pieces(state.sound, size()) - state.at : 0),
  };
}
