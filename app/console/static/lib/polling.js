// Asks again and again while a page can be seen.

// Calls `act` now, and `every` ms after it has ended; one that fails is told, and asked again. Ends with `signal`.
export async function polling(signal, every, act, told) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await act();
        told?.(null);
      } catch (error) {
        if (signal.aborted) return;
        if (!told) throw error;
        told(error);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, every));
  }
}
