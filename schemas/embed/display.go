package embed

import (
	"crypto/rand"
	"encoding/base64"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsvc/schemas/api"
	"agentsvc/schemas/problem"
)

// Defaults of a theme (open-parts.md, Embed).
const (
	defaultScheme   api.ColorScheme = "auto"
	defaultAccent                   = "#2563eb"
	defaultRadius   api.Radius      = "soft"
	defaultDensity  api.Density     = "normal"
	defaultPosition api.Position    = "right"
)

// NewIdentitySecret returns a new secret for identity tokens: 256 random bits. Its text is
// the HS256 key, byte for byte, with the prefix and without any decoding.
func NewIdentitySecret() string {
	var b [32]byte
	rand.Read(b[:])
	return "idsec_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// FilledTheme returns the theme with its defaults.
func FilledTheme(t api.EmbedTheme) api.EmbedTheme {
	fill(&t.ColorScheme, defaultScheme)
	fill(&t.Accent, defaultAccent)
	fill(&t.Radius, defaultRadius)
	fill(&t.Density, defaultDensity)
	fill(&t.Position, defaultPosition)
	return t
}

// FilledConfig returns the config with its defaults.
func FilledConfig(c api.EmbedDisplayConfig) api.EmbedDisplayConfig {
	if c.StarterPrompts == nil {
		c.StarterPrompts = []string{}
	}
	yes, no := true, false
	if c.ShowSources == nil {
		c.ShowSources = &no
	}
	for _, shown := range []**bool{&c.ShowHistory, &c.ShowToolActivity} {
		if *shown == nil {
			*shown = &yes
		}
	}
	return c
}

func fill[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

// CheckTheme returns what is wrong with a theme.
func CheckTheme(t *api.EmbedTheme) []problem.Field {
	c := &checks{in: "theme."}
	oneOf(c, "color_scheme", t.ColorScheme, api.ColorSchemes)
	oneOf(c, "radius", t.Radius, api.Radii)
	oneOf(c, "density", t.Density, api.Densities)
	oneOf(c, "position", t.Position, api.Positions)
	if t.Accent != "" && !isColour(t.Accent) {
		c.wrong("accent", "must be a colour, #rrggbb")
	}
	if t.ZIndex != nil && (*t.ZIndex < 0 || *t.ZIndex > 1<<31-1) {
		c.wrong("z_index", "must be 0 to 2147483647")
	}
	c.line("font_family", t.FontFamily, 200)
	// Refuse characters that could end the declaration or fetch a resource.
	if strings.ContainsAny(t.FontFamily, ";{}()<>\\/:@!") {
		c.wrong("font_family", "must be names of fonts, with commas between them")
	}
	c.line("avatar_url", t.AvatarURL, 2000)
	if u, err := url.Parse(t.AvatarURL); t.AvatarURL != "" && (err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil) {
		c.wrong("avatar_url", "must be an https URL without a user")
	}
	return c.bad
}

// CheckConfig returns what is wrong with a config.
func CheckConfig(d *api.EmbedDisplayConfig) []problem.Field {
	c := &checks{in: "config."}
	c.line("title", d.Title, 120)
	c.text("greeting", d.Greeting, 2000)
	if len(d.StarterPrompts) > 4 {
		c.wrong("starter_prompts", "must have at most 4 entries")
	}
	for i, p := range d.StarterPrompts {
		field := "starter_prompts[" + strconv.Itoa(i) + "]"
		if strings.TrimSpace(p) == "" {
			c.wrong(field, "must have 1 to 200 characters")
		}
		c.line(field, p, 200)
	}
	c.line("placeholder", d.Placeholder, 120)
	c.text("disclaimer", d.Disclaimer, 500)
	c.line("launcher_label", d.LauncherLabel, 120)
	c.line("contact_url", d.ContactURL, 2000)
	if d.ContactURL != "" && !isContact(d.ContactURL) {
		c.wrong("contact_url", "must be an https URL without a user, or mailto: with an address, as mailto:help@example.com")
	}
	if d.Locale != "" && !isLanguage(d.Locale) {
		c.wrong("locale", "must be a BCP 47 language tag, as de or pt-BR")
	}
	return c.bad
}

// isContact reports whether s is an https URL with a host and without a user, or a mailto URL
// with exactly one address. Browsers drop tabs, line ends and surrounding spaces from a URL
// and read a backslash as a slash, so a URL with any of these is refused: it would lead
// elsewhere than it appears to.
func isContact(s string) bool {
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\\' }) {
		return false
	}
	u, err := url.Parse(s)
	if err != nil {
		return false
	}
	switch u.Scheme {
	case "https":
		return u.Hostname() != "" && u.User == nil
	case "mailto":
		to, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return false
		}
		a, err := mail.ParseAddress(to)
		return err == nil && a.Name == "" && a.Address == to
	default:
		return false
	}
}

// checks collects complaints.
type checks struct {
	in  string
	bad []problem.Field
}

func (c *checks) wrong(field, message string) {
	c.bad = append(c.bad, problem.Field{Path: c.in + field, Message: message})
}

// line checks a single-line text.
func (c *checks) line(field, s string, most int) { c.short(field, s, most, "") }

// text checks a text that may have several lines.
func (c *checks) text(field, s string, most int) { c.short(field, s, most, "\n\r\t") }

func (c *checks) short(field, s string, most int, allowed string) {
	if utf8.RuneCountInString(s) > most {
		c.wrong(field, "must have at most "+strconv.Itoa(most)+" characters")
	}
	if HasControl(s, allowed) {
		c.wrong(field, "must not have control characters")
	}
}

// HasControl reports whether a text has control characters other than those allowed, or
// characters that end a line or change the text direction.
func HasControl(s, allowed string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && !strings.ContainsRune(allowed, r) ||
			'\u2028' <= r && r <= '\u202e' || '\u2066' <= r && r <= '\u2069'
	})
}

func oneOf[T ~string](c *checks, field string, v T, of []T) {
	if v == "" || slices.Contains(of, v) {
		return
	}
	names := make([]string, len(of))
	for i, o := range of {
		names[i] = string(o)
	}
	c.wrong(field, "must be one of "+strings.Join(names, ", "))
}

func isColour(s string) bool {
	return len(s) == 7 && s[0] == '#' && strings.Trim(s[1:], "0123456789abcdefABCDEF") == ""
}

// isLanguage reports whether s has the form of a language tag: a language, and further parts
// of letters and digits.
func isLanguage(s string) bool {
	parts := strings.Split(s, "-")
	for i, p := range parts {
		if len(p) < 1 || len(p) > 8 || strings.ContainsFunc(p, func(r rune) bool { return !isAlphanumeric(r, i > 0) }) {
			return false
		}
	}
	return len(s) <= 35 && len(parts[0]) >= 2
}

func isAlphanumeric(r rune, digits bool) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || digits && '0' <= r && r <= '9'
}
