package browser

import (
	"net/url"
	"slices"
	"strings"

	"agentsvc/schemas/redact"
	"agentsvc/schemas/skill"
)

// mark stands for a secret in what is reported.
const mark = redact.Mark

// Limits of texts of pages that are reported, in bytes.
const (
	maxTitle  = 300
	maxText   = 10_000
	maxActual = 500
	maxAnyURL = 2_048
)

// secrets are the values that were opened for a session. Its methods remove them from texts in
// every form in which a page may show them.
type secrets struct {
	values []string        // as they were opened, longest first
	known  []*redact.Known // of each value: encoded, escaped, or with what a reader does not see in it
	forms  []string        // of all values: those that pages show in another case; longest first
}

// add notes a secret and its forms. A cookie's name and path are none.
func (s *secrets) add(value string) {
	if len(value) < 3 || slices.Contains(s.values, value) {
		return
	}
	i := 0
	for i < len(s.values) && len(s.values[i]) >= len(value) {
		i++
	}
	s.values, s.known = slices.Insert(s.values, i, value), slices.Insert(s.known, i, redact.NewKnown(value))
	for _, form := range []string{value, skill.Clean(value), strings.TrimSpace(value), url.QueryEscape(value), url.PathEscape(value), strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
		escapeHTML.Replace(value), strings.Join(strings.Fields(value), " ")} {
		if len(form) >= 3 && !slices.Contains(s.forms, form) {
			s.forms = append(s.forms, form)
		}
	}
	slices.SortFunc(s.forms, func(a, b string) int { return len(b) - len(a) })
}

var escapeHTML = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;")

// clean returns a text of a page as it is reported: without control characters, without secrets,
// of at most max bytes.
func (s *secrets) clean(text string, most int) string {
	if len(text) > 8*maxText {
		text = text[:8*maxText]
	}
	hidden := s.hide(strings.ToValidUTF8(text, "\uFFFD"))
	text = skill.Clean(hidden)
	for _, form := range s.forms {
		text = replaceFold(text, form)
	}
	if text != hidden { // what was removed may have stood between the parts of a secret
		text = s.hide(text)
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// hide removes each secret in the forms of redact.Known.
func (s *secrets) hide(text string) string {
	for _, k := range s.known {
		text = k.Text(text)
	}
	return text
}

// replaceFold replaces a form, in any case of its ASCII letters: pages change case.
func replaceFold(text, form string) string {
	low, want := lower(text), lower(form)
	if !strings.Contains(low, want) {
		return text
	}
	var b strings.Builder
	for {
		i := strings.Index(low, want)
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		b.WriteString(mark)
		text, low = text[i+len(want):], low[i+len(want):]
	}
}

// lower changes ASCII letters alone, so that positions stay.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
