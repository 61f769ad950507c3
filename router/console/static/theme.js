// Before the first paint: dark or light as it was chosen, else as the system has it.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const chosen = localStorage.getItem("theme");
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", show);
  addEventListener("theme", show);
  show();
})();
