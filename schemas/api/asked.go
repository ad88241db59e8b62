package api

import (
	"encoding/json"
	"strings"
)

// askedChars is how much of what was asked a summary shows.
const askedChars = 200

// Asked returns the start of what a run was asked, given the first bytes of its input, as agents
// read it: a string, or the member text or else input of an object; anything else is JSON text.
func Asked(input string) string {
	input = strings.TrimLeft(input, " \t\r\n")
	if input == "" || strings.HasPrefix(input, "null") {
		return ""
	}
	if text, ok := leading(input); ok {
		return clip(text)
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(input), &object) == nil {
		for _, name := range []string{"text", "input"} {
			if raw, ok := object[name]; ok {
				text, ok := leading(string(raw))
				if !ok {
					text = string(raw)
				}
				return clip(text)
			}
		}
	} else if rest, ok := strings.CutPrefix(input, "{"); ok { // the input goes on behind its beginning
		for _, name := range []string{`"text"`, `"input"`} {
			if value, ok := strings.CutPrefix(strings.TrimLeft(rest, " \t\r\n"), name); ok {
				value, _ = strings.CutPrefix(strings.TrimLeft(value, " \t\r\n"), ":")
				if text, ok := leading(strings.TrimLeft(value, " \t\r\n")); ok {
					return clip(text)
				}
			}
		}
	}
	return clip(input)
}

// leading decodes the string that JSON begins with, as much of it as there is.
func leading(raw string) (string, bool) {
	if raw == "" || raw[0] != '"' {
		return "", false
	}
	end := 1
	for end < len(raw) && raw[end] != '"' {
		n := 1
		if raw[end] == '\\' {
			if n = 2; end+1 < len(raw) && raw[end+1] == 'u' {
				n = 6
			}
		}
		if end+n > len(raw) {
			break
		}
		end += n
	}
	var text string
	err := json.Unmarshal([]byte(strings.ToValidUTF8(raw[:end], "")+`"`), &text)
	return text, err == nil
}

// clip cuts a text after askedChars characters.
func clip(s string) string {
	n := 0
	for i := range s {
		if n == askedChars {
			return s[:i]
		}
		n++
	}
	return s
}
