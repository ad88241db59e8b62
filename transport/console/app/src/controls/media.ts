import { signal } from "@preact/signals";

const small = matchMedia("(max-width: 639.9px)");
/** narrow: a phone; tables are lists, and the navigation is in a dialog. */
export const narrow = signal(small.matches);
small.addEventListener("change", () => {
  narrow.value = small.matches;
});
