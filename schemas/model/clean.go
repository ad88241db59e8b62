package model

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/flow/scan"
)

// Clean removes U+0000 and replaces invalid UTF-8: neither can be stored or shown. Clean text
// is returned as it is.
func Clean(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// CleanJSON is Clean for a JSON text. It also removes escapes of U+0000 and replaces those of
// half a surrogate pair by U+FFFD, which JSON allows and jsonb refuses. The text must be
// valid JSON and stays so.
func CleanJSON(raw json.RawMessage) json.RawMessage {
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	if !bytes.Contains(raw, []byte(`\u`)) {
		return raw
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 >= len(raw) {
			out = append(out, raw[i])
			i++
			continue
		}
		if raw[i+1] != 'u' {
			out = append(out, raw[i], raw[i+1])
			i += 2
			continue
		}
		u, ok := hex4(raw, i+2)
		switch {
		case !ok: // not valid JSON
			return raw
		case u == 0:
			i += 6
		case u < 0xD800 || u > 0xDFFF:
			out = append(out, raw[i:i+6]...)
			i += 6
		default:
			if low, ok := hex4(raw, i+8); u < 0xDC00 && ok && raw[i+6] == '\\' && raw[i+7] == 'u' && low >= 0xDC00 && low <= 0xDFFF {
				out = append(out, raw[i:i+12]...)
				i += 12
				continue
			}
			out = append(out, `\ufffd`...)
			i += 6
		}
	}
	return out
}

func hex4(b []byte, at int) (u rune, ok bool) {
	if at+4 > len(b) {
		return 0, false
	}
	for _, c := range b[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		u = u<<4 | rune(c)
	}
	return u, true
}

// NewCall makes a Call from the arguments as a model wrote them: no text means no arguments,
// and anything but a JSON object, or one that nests too deep, is Malformed.
func NewCall(id, name, args string) Call {
	c := Call{ID: Clean(id), Name: Clean(name)}
	args = strings.TrimSpace(args)
	switch {
	case args == "":
		c.Args = json.RawMessage("{}")
	case args[0] == '{' && json.Valid([]byte(args)) && scan.Depth([]byte(args)) <= scan.MaxDepth:
		c.Args = CleanJSON(json.RawMessage(args))
	default:
		c.Args, c.Malformed = json.RawMessage("{}"), Clean(args)
	}
	return c
}
