// Pictures as tensors: a file is decoded and resized by a canvas, its pixels are scaled and laid out.
import { encode } from "./datatypes.js";

export const SCALES = [
  ["255", "0 to 255"],
  ["1", "0 to 1"],
  ["pm1", "−1 to 1"],
  ["imagenet", "ImageNet's mean and deviation"],
];
const MEANS = [0.485, 0.456, 0.406];
const DEVIATIONS = [0.229, 0.224, 0.225];
const MAX_PIXELS = 100e6;

// Returns a function of a value of 0 to 255 and its channel.
export function scaling(scale) {
  if (scale === "1") return (value) => value / 255;
  if (scale === "pm1") return (value) => value / 127.5 - 1;
  if (scale === "imagenet") return (value, channel) => (value / 255 - MEANS[channel]) / DEVIATIONS[channel];
  return (value) => value;
}

// Decodes a file; the picture stands upright.
export async function decodePicture(file) {
  let picture;
  try {
    picture = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    throw new Error(`${file.name || "The file"} is no picture that this browser reads.`);
  }
  if (picture.width * picture.height > MAX_PIXELS) throw new Error("The picture has more than 100 million pixels.");
  return picture;
}

// Draws a picture in a canvas of a size; `fit` "crop" keeps its form and cuts, "stretch" does not keep it.
export function drawn(picture, { width, height }, fit = "stretch") {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingQuality = "high";
  const scale = Math.max(width / picture.width, height / picture.height);
  const size = fit === "crop" ? [picture.width * scale, picture.height * scale] : [width, height];
  pen.drawImage(picture, (width - size[0]) / 2, (height - size[1]) / 2, ...size);
  return canvas;
}

// Returns the pixels of a canvas as a tensor: { bytes, elements }, one of the two.
//
// rgba: width * height * 4 values. how: { layout, channels, scale, order, datatype }.
export function tensorOf({ data, width, height }, { layout, channels, scale, order = "RGB", datatype }) {
  const area = width * height;
  const values = new Float32Array(area * channels);
  const scaled = scaling(scale);
  for (let pixel = 0; pixel < area; pixel += 1) {
    const rgb = [data[4 * pixel], data[4 * pixel + 1], data[4 * pixel + 2]];
    const mixed = channels === 1 ? [0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]] : rgb;
    for (let channel = 0; channel < channels; channel += 1) {
      const to = order === "BGR" ? channels - 1 - channel : channel;
      const at = layout === "NCHW" ? to * area + pixel : pixel * channels + to;
      values[at] = scaled(mixed[channel], channel);
    }
  }
  return encode(datatype, datatype === "UINT8" ? values.map(Math.round) : values);
}

// Returns what a tensor looks like as RGBA, { data, width, height, stretched }; null if it is no picture.
export function pictureOf({ datatype, shape, elements }) {
  if (!["UINT8", "FP32", "FP16", "BF16", "FP64"].includes(datatype)) return null;
  const sizes = shape.length === 4 && shape[0] === 1 ? shape.slice(1) : shape;
  const placed = sizes.length === 2 ? { first: true, sizes: [1, ...sizes] } : placedChannels(sizes);
  if (!placed || (sizes.length === 2 && datatype !== "UINT8")) return null;
  const [channels, height, width] = placed.sizes;
  if (height < 8 || width < 8 || height * width > 16e6) return null;
  const { low, high } = range(elements, datatype);
  const area = height * width;
  const data = new Uint8ClampedArray(area * 4);
  for (let pixel = 0; pixel < area; pixel += 1) {
    for (let channel = 0; channel < 4; channel += 1) {
      const from = channels === 1 && channel < 3 ? 0 : channel;
      const value = from < channels ? elements[placed.first ? from * area + pixel : pixel * channels + from] : high;
      data[4 * pixel + channel] = ((value - low) / (high - low)) * 255;
    }
  }
  return { data, width, height, low, high };
}

function placedChannels(sizes) {
  if (sizes.length !== 3) return null;
  if ([1, 3].includes(sizes[0])) return { first: true, sizes };
  if ([1, 3, 4].includes(sizes[2])) return { first: false, sizes: [sizes[2], sizes[0], sizes[1]] };
  return null;
}

// The values that are black and white: those of bytes, of 0 to 1, or else the least and the most.
function range(elements, datatype) {
  if (datatype === "UINT8") return { low: 0, high: 255 };
  let low = Infinity;
  let high = -Infinity;
  for (const value of elements) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low >= 0 && high <= 1) return { low: 0, high: 1 };
  if (low >= 0 && high <= 255 && high > 16) return { low: 0, high: 255 };
  return { low, high: high > low ? high : low + 1 };
}
