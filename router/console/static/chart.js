// Plots over time or by number, drawn by uPlot in the colours of the theme.
import { clock } from "./format.js";
import { html } from "./html.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import uPlot from "./vendor/uplot.js";

const COLOURS = ["--plot-1", "--plot-2", "--plot-3", "--plot-4", "--plot-5"];

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const useTheme = () => {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const watch = new MutationObserver(() => setTheme(document.documentElement.dataset.theme));
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => watch.disconnect();
  }, []);
  return theme;
};

const NO_BANDS = /** @type {Band[]} */ ([]);

/** @typedef {{ from: number, to: number, bad: boolean }} Band a part of the x axis that is shaded */

/**
 * `series` are the names of all but the first row of `data`, which is the x of all of them; `show` writes a
 * value of y. `limit` is a line that values should stay below. The text says the same to who cannot see it.
 * @param {{ label: string, series: string[], data: (number | null)[][], show?: (value: number | null) => string,
 *   x?: "time" | "number", xShow?: (value: number) => string, height?: number, kind?: "line" | "bars" | "dots",
 *   limit?: number | null, legend?: boolean, top?: number, bands?: Band[] }} props
 */
export const Chart = ({ label, series, data, show = (value) => (value == null ? "–" : value.toLocaleString("en")),
  x = "time", xShow = x === "time" ? clock : undefined, height = 150, kind = "line", limit = null, legend = false, top = 0, bands = NO_BANDS }) => {
  const place = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const theme = useTheme();
  const shape = `${theme}|${series.join("|")}|${kind}|${height}|${x}|${limit}`;

  useEffect(() => {
    const into = place.current;
    if (!into) return;
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font };
    const options = {
      width: into.clientWidth || 300,
      height,
      legend: { show: legend, live: true },
      padding: [8, 26, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: {
        x: { time: x === "time" },
        y: { range: (/** @type {unknown} */ _, /** @type {number} */ _low, /** @type {number} */ high) =>
          [0, Math.max((high || 0) * 1.1, (limit ?? 0) * 1.15, top) || 1] },
      },
      axes: [
        { ...axis, size: 26, gap: 7, space: 70, ...(xShow ? { values: (/** @type {unknown} */ _, /** @type {number[]} */ at) => at.map(xShow) } : {}) },
        { ...axis, size: 58, space: 22, values: (/** @type {unknown} */ _, /** @type {number[]} */ at) => at.map(show) },
      ],
      series: [
        { label: x === "time" ? "at" : "", ...(xShow ? { value: (/** @type {unknown} */ _, /** @type {number} */ v) => (v == null ? "–" : xShow(v)) } : {}) },
        ...series.map((name, at) => {
          const ink = colour(COLOURS[at % COLOURS.length]);
          return {
            label: name, stroke: ink, width: kind === "dots" ? 0 : 1.75, spanGaps: false,
            value: (/** @type {unknown} */ _, /** @type {number | null} */ value) => show(value),
            ...(kind === "bars" ? { fill: ink, paths: uPlot.paths.bars?.({ size: [0.8, 24], align: 0 }), points: { show: false } } : {}),
            ...(kind === "line" ? { points: { show: false }, ...(series.length === 1 ? { fill: ink + "22" } : {}) } : {}),
            ...(kind === "dots" ? { points: { show: true, size: 4, fill: ink } } : {}),
          };
        }),
      ],
      hooks: {
        drawClear: [(/** @type {any} */ self) => {
          const { left, top: above, width, height: high } = self.bbox;
          for (const band of bands) {
            const begin = Math.max(self.valToPos(band.from, "x", true), left), end = Math.min(self.valToPos(band.to, "x", true), left + width);
            if (end < left || begin > left + width) continue;
            self.ctx.fillStyle = colour(band.bad ? "--bad-soft" : "--raised");
            self.ctx.fillRect(begin, above, Math.max(end - begin, 2), high);
          }
        }],
        draw: limit == null ? [] : [(/** @type {any} */ self) => {
          const at = self.valToPos(limit, "y", true), { left, width } = self.bbox, ink = self.ctx;
          ink.save();
          ink.strokeStyle = colour("--bad");
          ink.setLineDash([6, 4]);
          ink.beginPath();
          ink.moveTo(left, at);
          ink.lineTo(left + width, at);
          ink.stroke();
          ink.restore();
        }],
      },
    };
    const made = new uPlot(options, data, into);
    plot.current = made;
    const resized = new ResizeObserver(() => into.clientWidth && made.setSize({ width: into.clientWidth, height }));
    resized.observe(into);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, bands]);

  useEffect(() => plot.current?.setData(data), [data]);

  const last = series.map((name, at) => `${name} ${show(data[at + 1]?.at(-1) ?? null)}`).join(", ");
  return html`<figure class="chart"><figcaption>${label}${series.length > 1
      ? html`<span class="keys">${series.map((name, at) => html`<span><i class=${`k${at % COLOURS.length}`}></i>${name}</span>`)}</span>` : null}</figcaption>
    <div ref=${place} role="img" aria-label=${`${label}: ${last}`}></div></figure>`;
};
