// The editor of an input that is a picture's pixels: a file, how it is resized and scaled, and what is sent.
import { field, h, replace, select } from "../lib/dom.js";
import { decodePicture, drawn, SCALES, tensorOf } from "../tensors/pictures.js";
import { pictureSize } from "../tensors/kinds.js";

export function pictureEditor(spec) {
  const { layout, channels } = spec.picture;
  const file = h("input", { type: "file", accept: "image/*" });
  const scales = SCALES.filter(([key]) => channels === 3 || key !== "imagenet");
  const scale = select(scales, spec.datatype === "UINT8" ? "255" : "1");
  const order = select([["RGB", "RGB"], ["BGR", "BGR"]], "RGB");
  const fit = select([["stretch", "stretch it"], ["crop", "keep its form, cut"]], "stretch");
  const sides = { height: side("Height", spec.picture.height), width: side("Width", spec.picture.width) };
  const preview = h("div", { class: "preview" });
  let picture = null;
  let canvas = null;
  const draw = () => {
    if (!picture) return replace(preview);
    canvas = drawn(picture, { height: size(sides.height), width: size(sides.width) }, fit.value);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "The picture as it is sent");
    canvas.className = "thumbnail";
    const sent = `sent as ${canvas.width} × ${canvas.height}`;
    const words = `${file.files[0].name}, ${picture.width} × ${picture.height}, ${sent}`;
    return replace(preview, canvas, h("p", { class: "quiet" }, words));
  };
  file.addEventListener("change", async () => {
    picture = null;
    try {
      picture = file.files[0] ? await decodePicture(file.files[0]) : null;
      const sizes = picture ? pictureSize(spec.picture, picture) : {};
      for (const [key, value] of Object.entries(sizes)) sides[key].value = String(value);
      draw();
    } catch (error) {
      replace(preview, h("p", { class: "bad", role: "alert" }, error.message));
    }
  });
  for (const each of [fit, sides.height, sides.width]) each.addEventListener("change", draw);
  const choices = [
    field("Values", scale), field(`Layout: ${layout}`, channels === 3 ? order : h("output", {}, "grey")), field("Form", fit),
    field("Height", sides.height), field("Width", sides.width),
  ];
  const read = async () => {
    if (!picture) throw new Error("choose a picture");
    const { width, height } = canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, width, height);
    const how = { layout, channels, scale: scale.value, order: order.value, datatype: spec.datatype };
    const one = layout === "NCHW" ? [channels, height, width] : [height, width, channels];
    const shape = [...Array(spec.shape.length - 3).fill(1), ...one];
    return { shape, bytes: tensorOf(pixels, how), elements: [] };
  };
  const made = { node: h("div", {}, field("Picture", file), h("div", { class: "choices" }, choices), preview), read };
  Object.defineProperty(made, "picture", { get: () => canvas });
  return made;
}

function side(word, fixed) {
  const disabled = fixed !== null;
  return h("input", { type: "number", min: "8", max: "4096", value: fixed ?? 224, disabled, aria: { label: word } });
}

function size(input) {
  return Math.min(4096, Math.max(8, Math.floor(Number(input.value)) || 8));
}
