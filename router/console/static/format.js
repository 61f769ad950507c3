// Numbers as people read them.

/** @param {number | null | undefined} value */
export const whole = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en"));

/** @param {number | null | undefined} value */
export const rate = (value) => {
  if (value == null) return "–";
  return value >= 100 ? whole(value) : String(Number(value.toFixed(value >= 10 ? 1 : 2)));
};

/** @param {number | null | undefined} seconds */
export const time = (seconds) => {
  if (seconds == null) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(2))} s`;
  return seconds < 120 ? `${Math.round(seconds)} s` : span(seconds);
};

/** @param {number} seconds */
export const span = (seconds) => {
  for (const [size, unit] of /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"]]))
    if (seconds >= size) return `${(seconds / size).toFixed(seconds < 10 * size ? 1 : 0)} ${unit}`;
  return `${Math.round(seconds)} s`;
};

/** @param {number | null | undefined} part */
export const percent = (part) =>
  part == null ? "–" : `${(100 * part).toFixed(part > 0 && part < 0.095 ? 1 : 0)} %`;

/** @param {number | null | undefined} bytes */
export const bytes = (bytes) => {
  if (bytes == null) return "–";
  for (const [size, unit] of /** @type {[number, string][]} */ ([[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]))
    if (bytes >= size) return `${(bytes / size).toFixed(bytes < 10 * size ? 1 : 0)} ${unit}`;
  return `${bytes} B`;
};

/** @param {number} micro */
export const dollars = (micro) => {
  const value = micro / 1e6;
  return `$${value.toFixed(value >= 1 || value === 0 ? 2 : value >= 0.001 ? 4 : 6)}`;
};

/** @param {number} seconds since 1970 */
export const moment = (seconds) =>
  new Date(seconds * 1e3).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** @param {number} seconds since 1970 */
export const clock = (seconds) => new Date(seconds * 1e3).toLocaleTimeString("en-GB");

/** @param {number} seconds since 1970 */
export const ago = (seconds) => {
  const since = Date.now() / 1e3 - seconds;
  return since < 5 ? "just now" : `${span(since)} ago`;
};

/**
 * A file for spreadsheets; what they would take for a formula is text.
 * @param {string[]} head
 * @param {(string | number | null | undefined)[][]} rows
 */
export const csv = (head, rows) => {
  /** @param {string | number | null | undefined} value */
  const cell = (value) => {
    let text = value == null ? "" : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
};

/**
 * @param {string} name
 * @param {string} text
 */
export const download = (name, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
