import css from "./styles.css";
import { accent, fonts, ink, zIndex } from "./theme";
import type { Theme } from "./api";

/** style gives a shadow root its style sheet as an object, for then no content security policy of the page stands against it. */
export function style(shadow: ShadowRoot): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  shadow.adoptedStyleSheets = [sheet];
}

/** dress puts a theme on the widget, for as long as the signal is not aborted. */
export function dress(host: HTMLElement, root: HTMLElement, theme: Theme, inline: boolean, signal: AbortSignal): void {
  const colour = accent(theme.accent);
  const set = (name: string, value: string): void => root.style.setProperty(name, value);
  set("--accent", colour);
  set("--ink", ink(colour));
  set("--font", fonts(theme.font_family) || "system-ui"); // the page may have a --font of its own
  if (!inline) host.style.setProperty("--svc-z", String(zIndex(theme.z_index)));
  const toggle = (name: string, on: boolean): boolean => root.classList.toggle(name, on);
  for (const name of ["left", "none", "round", "compact"]) toggle(name, [theme.position, theme.radius, theme.density].includes(name as never));

  const system = matchMedia("(prefers-color-scheme: dark)");
  const scheme = theme.color_scheme;
  const shade = (): void => void toggle("dark", scheme === "dark" || (scheme !== "light" && system.matches));
  shade();
  system.addEventListener("change", shade, { signal });
}
