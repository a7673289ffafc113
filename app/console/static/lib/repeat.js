// Work that is done again and again while a page can be seen, until it is left.

// Runs `work` now and `every_ms` after each end; `failed` is told why it has failed, and null when it has not.
export function repeat(work, signal, failed, every_ms = 1000) {
  let timer = 0;
  let running = false;
  async function run() {
    if (signal.aborted || document.hidden || running) return;
    clearTimeout(timer);
    running = true;
    try {
      await work();
      failed(null);
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
    running = false;
    if (!signal.aborted) timer = setTimeout(run, every_ms);
  }
  document.addEventListener("visibilitychange", run, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return run();
}

// Returns a node that says why something fails, and the function for `repeat` that fills it.
export function trouble(node) {
  return (error) => {
    const text = error ? error.message : "";
    if (node.textContent !== text) node.textContent = text;
    node.hidden = !text;
  };
}
