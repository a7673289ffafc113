// Numbers and times for people; a dash for what is not known.

const NONE = "–";
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function known(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

// Three digits: 0.123, 1.23, 12.3, 123, 1,234.
function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return number.format(value);
  return String(Number(value.toPrecision(size < 0.01 ? 1 : 3)));
}

export function count(value) {
  return known(value) ? number.format(value) : NONE;
}

export function decimal(value) {
  return known(value) ? short(value) : NONE;
}

export function rate(value) {
  return known(value) ? `${short(value)}/s` : NONE;
}

export function ms(value) {
  if (!known(value)) return NONE;
  return value >= 10000 ? `${short(value / 1000)} s` : `${short(value)} ms`;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; value >= 1024 && place < units.length - 1; place += 1) value /= 1024;
  return `${short(value)} ${units[place]}`;
}

export function percent(share) {
  return known(share) ? `${short(share * 100)} %` : NONE;
}

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 1) return ms(seconds * 1000);
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${number.format(seconds / 60)} min`;
  return seconds < 172800 ? `${number.format(seconds / 3600)} h` : `${number.format(seconds / 86400)} d`;
}

export function ago(unixSeconds) {
  return unixSeconds ? `${duration(Math.max(0, Date.now() / 1000 - unixSeconds))} ago` : NONE;
}

export function clock(unixSeconds) {
  return unixSeconds ? new Date(unixSeconds * 1000).toLocaleTimeString("en-GB") : NONE;
}
