/** leftText is how much time is left: `3 min`, `2 h`, `no time`. */
export function leftText(until: string, from: number): string {
  const ms = Date.parse(until) - from;
  if (ms <= 0) return "no time";
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}
