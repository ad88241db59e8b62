import css from "./styles.css";
import { accent, fonts, ink, zIndex } from "./theme";
import type { Theme } from "./api";

/**
 * style gives a shadow root its style sheet: as an object where the browser can, for
 * then no content security policy of the page stands against it.
 */
export function style(shadow: ShadowRoot): void {
  try {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
    shadow.adoptedStyleSheets = [sheet];
  } catch {
    const el = document.createElement("style");
    el.textContent = css;
    shadow.append(el);
  }
}

/** dress puts a theme on the widget; what returns takes its listener away. */
export function dress(host: HTMLElement, root: HTMLElement, theme: Theme, inline: boolean): () => void {
  const colour = accent(theme.accent);
  root.style.setProperty("--accent", colour);
  root.style.setProperty("--ink", ink(colour));
  root.style.setProperty("--font", fonts(theme.font_family) || "system-ui"); // the page may have a --font of its own
  if (!inline) host.style.setProperty("--svc-z", String(zIndex(theme.z_index)));
  root.classList.toggle("left", theme.position === "left");
  root.classList.toggle("none", theme.radius === "none");
  root.classList.toggle("round", theme.radius === "round");
  root.classList.toggle("compact", theme.density === "compact");

  const system = matchMedia("(prefers-color-scheme: dark)");
  const shade = (): void => void root.classList.toggle("dark", theme.color_scheme === "dark" || (theme.color_scheme !== "light" && system.matches));
  shade();
  system.addEventListener("change", shade);
  return () => system.removeEventListener("change", shade);
}
