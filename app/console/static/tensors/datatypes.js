// Tensor data types: values to the bytes of the protocol and back. Little-endian, row-major; an element of
// BYTES is a u32 length and that many bytes. FP16 and BF16 have no array of their own here.

const INTEGERS = {
  UINT8: [Uint8Array, 0n, 255n],
  UINT16: [Uint16Array, 0n, 65535n],
  UINT32: [Uint32Array, 0n, 4294967295n],
  UINT64: [BigUint64Array, 0n, 18446744073709551615n],
  INT8: [Int8Array, -128n, 127n],
  INT16: [Int16Array, -32768n, 32767n],
  INT32: [Int32Array, -2147483648n, 2147483647n],
  INT64: [BigInt64Array, -9223372036854775808n, 9223372036854775807n],
};
const FLOATS = { FP32: Float32Array, FP64: Float64Array };
const SIZES = { BOOL: 1, FP16: 2, BF16: 2, FP32: 4, FP64: 8, BYTES: 0 };
const LARGEST_HALF = 65504;

export const isInteger = (datatype) => datatype in INTEGERS;
export const is64 = (datatype) => datatype === "INT64" || datatype === "UINT64";
// Whether the protocol's JSON can carry it.
export const inJson = (datatype) => datatype !== "FP16" && datatype !== "BF16";

// Bytes of an element; 0 for BYTES, whose elements differ.
export function sizeOf(datatype) {
  return isInteger(datatype) ? INTEGERS[datatype][0].BYTES_PER_ELEMENT : SIZES[datatype];
}

// Returns an element as it is sent, made of what a person has written: a number, true, or digits as a string.
export function element(datatype, value) {
  if (datatype === "BOOL") return boolean(value);
  if (isInteger(datatype)) return integer(datatype, value);
  if (datatype === "BYTES") return value instanceof Uint8Array ? value : String(value);
  const found = value === null || typeof value === "boolean" ? NaN : Number(value);
  if (Number.isNaN(found) && value !== "NaN") throw new Error(`${shown(value)} is no number`);
  if (datatype === "FP16" && Number.isFinite(found) && Math.abs(found) > LARGEST_HALF + 15) {
    throw new Error(`${shown(value)} is too large for FP16 (at most ${LARGEST_HALF})`);
  }
  return found;
}

function boolean(value) {
  if (value === true || value === 1 || value === "1") return true;
  if (value === false || value === 0 || value === "0") return false;
  throw new Error(`${shown(value)} is not true or false`);
}

function integer(datatype, value) {
  const [, least, most] = INTEGERS[datatype];
  let found;
  try {
    found = BigInt(value);
  } catch {
    throw new Error(`${shown(value)} is no whole number`);
  }
  if (typeof value === "boolean") throw new Error(`${value} is no whole number`);
  if (found < least || found > most) throw new Error(`${shown(value)} is no ${datatype} (${least} to ${most})`);
  return is64(datatype) ? found : Number(found);
}

function shown(value) {
  const text = typeof value === "bigint" ? String(value) : JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}

// Returns elements, as `element` makes them, as bytes.
export function encode(datatype, elements) {
  if (datatype === "BYTES") return texts(elements);
  if (datatype === "BOOL") return Uint8Array.from(elements, Number);
  if (datatype === "FP16") return bytesOf(Uint16Array.from(elements, toHalf));
  if (datatype === "BF16") return bytesOf(Uint16Array.from(elements, toBrain));
  const kind = isInteger(datatype) ? INTEGERS[datatype][0] : FLOATS[datatype];
  return bytesOf(elements instanceof kind ? elements : kind.from(elements));
}

export function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

function texts(elements) {
  const encoder = new TextEncoder();
  const parts = Array.from(elements, (each) => (each instanceof Uint8Array ? each : encoder.encode(each)));
  const found = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
  const view = new DataView(found.buffer);
  let at = 0;
  for (const part of parts) {
    view.setUint32(at, part.length, true);
    found.set(part, at + 4);
    at += 4 + part.length;
  }
  return found;
}

// Returns bytes as an array of elements: numbers, bigints, booleans, or Uint8Arrays for BYTES.
export function decode(datatype, bytes) {
  if (datatype === "BYTES") return pieces(bytes);
  const own = bytes.slice(); // whose buffer begins with it, as typed arrays want
  if (datatype === "BOOL") return Array.from(own, Boolean);
  if (datatype === "FP16") return Float32Array.from(new Uint16Array(own.buffer), fromHalf);
  if (datatype === "BF16") return Float32Array.from(new Uint16Array(own.buffer), fromBrain);
  const kind = isInteger(datatype) ? INTEGERS[datatype][0] : FLOATS[datatype];
  return new kind(own.buffer);
}

function pieces(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = [];
  for (let at = 0; at + 4 <= bytes.length; ) {
    const size = view.getUint32(at, true);
    found.push(bytes.subarray(at + 4, at + 4 + size));
    at += 4 + size;
  }
  return found;
}

const single = new DataView(new ArrayBuffer(4));

function bits(value) {
  single.setFloat32(0, value);
  return single.getUint32(0);
}

// The nearest value, ties to the even one, in both of these.
function toBrain(value) {
  const found = bits(value);
  if (Number.isNaN(value)) return 0x7fc0;
  return (found + 0x7fff + ((found >>> 16) & 1)) >>> 16;
}

function fromBrain(half) {
  single.setUint32(0, half * 65536);
  return single.getFloat32(0);
}

function toHalf(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | even(size * 2 ** 24);
  const exponent = Math.min(15, Math.floor(Math.log2(size)));
  const low = size < 2 ** exponent ? exponent - 1 : exponent;
  return sign | ((low + 14) * 1024 + even((size / 2 ** low) * 1024));
}

function even(value) {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2) ? floor + 1 : floor;
}

function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const rest = half & 1023;
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + rest / 1024) : sign * 2 ** -24 * rest;
}
