"""How a report looks: on a screen, light or dark, on a phone, and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #20262e; --muted: #5c6773; --grid: #dfe3e8; --card: #f5f7f9; --goal: #b3261e;
  --good: #1a7f4b; --bad: #b3261e; --unsure: #8a6100;
  --c1: #2166ac; --c2: #d1751f; --c3: #2a9080; --c4: #8553a4; --c5: #a8a22c; --c6: #c2527a; --c7: #6b7c8f;
  --c8: #8c6239; --c9: #1fa3c4;
  --low: #9cc3e6; --middle: #3f83c4; --high: #123f73;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --ink: #e4e8ec; --muted: #9aa6b2; --grid: #323a43; --card: #1d232a; --goal: #ff8a80;
    --good: #5fd097; --bad: #ff8a80; --unsure: #e3b341;
    --c1: #6aaae8; --c2: #f0a35c; --c3: #5cc4b2; --c4: #bd93d8; --c5: #d0ca5a; --c6: #ec8bad;
    --c7: #a3b3c4; --c8: #c79c6d; --c9: #7fd6ec;
    --low: #355f88; --middle: #6aaae8; --high: #d3e8fb;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; }
.muted, figcaption span, caption { color: var(--muted); }
.verdict {
  border-left: 4px solid var(--unsure); padding: .4rem .8rem; margin: 1rem 0; background: var(--card);
  font-weight: 600;
}
.verdict.kept { border-color: var(--good); }
.verdict.missed { border-color: var(--bad); }
.warning {
  border-left: 4px solid var(--unsure); padding: .3rem .8rem; margin: .4rem 0; background: var(--card);
}
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1rem 0; }
@media (max-width: 40rem) { .cards { grid-template-columns: repeat(2, 1fr); } }
.card { background: var(--card); border-radius: 6px; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { color: var(--muted); font-size: .85rem; }
.plots {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.4rem 2rem;
  align-items: start;
}
figure { margin: 0; break-inside: avoid; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .2rem; }
figcaption span { display: block; font-weight: 400; font-size: .85rem; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: .85rem; padding-bottom: .3rem; }
th, td {
  text-align: right; padding: .28rem .42rem; border-bottom: 1px solid var(--grid); white-space: nowrap;
}
th { font-weight: 600; color: var(--muted); vertical-align: bottom; }
th.text, td.text { text-align: left; }
.words td { white-space: normal; overflow-wrap: anywhere; }
.message { display: inline-block; white-space: normal; overflow-wrap: anywhere; min-width: 16rem; }
tr { break-inside: avoid; }
.better { color: var(--good); font-weight: 600; }
.worse { color: var(--bad); font-weight: 600; }
code, pre { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre {
  background: var(--card); padding: .7rem .9rem; border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere;
}
.key {
  display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em;
  vertical-align: -.05em;
}
@media (max-width: 40rem) {
  main { padding: 1rem .7rem 3rem; }
  table { font-size: .78rem; }
  th, td { padding: .25rem .3rem; }
}
@media print {
  body { font-size: 9.5pt; }
  main { max-width: none; padding: 0; }
  .plots { grid-template-columns: 1fr 1fr; }
}
"""
